"""Published large runs fit into the memory that they ran in, as they are read from their files.

Sources: arXiv 2104.04473 Table 1 (A100 of 80 GB); arXiv 2211.05100 section 3 (BLOOM, the same);
arXiv 2204.06745 (GPT-NeoX-20B, A100 of 40 GB); NVIDIA's NeMo,
scripts/performance/recommended_model_configs/model_configs_h100.csv, and NeMo-Framework-Launcher,
launcher_scripts/conf/training; MLPerf Training, mlcommons/training_results_v4.0 and v5.0, NVIDIA's gpt3 and
llama31_405b; torchtitan, train_configs/llama3_405b.toml and
benchmarks/llama3_h100_202412_torchtitan.md (72.7 GiB measured).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from import_samples import DATA
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.importers.readers import import_files
from pipesim.importers.scenario_file import scenario_text

TABLE = [DATA / "megatron_table_sizes.sh", DATA / "megatron_table_arguments.sh"]
A100 = ["cluster.accelerator=a100-sxm-80"]
LLAMA3 = {
    "num_query_groups": 8,
    "activation": "fast-swiglu",
    "bias": False,
    "share_embeddings_and_output_weights": False,
    "position_embedding_type": "rope",
    "vocab_size": 128256,
}
LAUNCHER: dict[str, tuple[int, dict[str, Any]]] = {
    "GPT-3 175B": (
        128,
        {"tensor": 4, "pipeline": 8, "virtual": 6, "layers": 96, "hidden": 12288, "heads": 96},
    ),
    "GPT-3 40B": (128, {"tensor": 2, "pipeline": 4, "micro": 2, "layers": 48, "hidden": 8192, "heads": 64}),
    "Llama 3 70B": (
        128,
        {"tensor": 4, "pipeline": 4, "virtual": 5, "context": 2, "length": 8192, "layers": 80, "hidden": 8192}
        | {"heads": 64, "ffn": 28672, "more": LLAMA3},
    ),
    "Llama 3 8B": (
        16,
        {"context": 2, "length": 8192, "layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336}
        | {"more": LLAMA3},
    ),
}  # fmt: skip
RUNS: dict[str, tuple[str, list[Path], dict[str, Any]]] = {
    **{
        f"GPT {size}": ("megatron", TABLE, {"define": {"SIZE": size}, "overrides": A100})
        for size in ("1.7B", "3.6B", "7.5B", "18B", "39B", "76B", "145B", "310B")
    },
    "BLOOM": ("deepspeed", [DATA / "deepspeed_bloom.sh"], {"overrides": A100}),
    "GPT-NeoX-20B": ("neox", [DATA / "neox_20b.yml"], {"overrides": ["cluster.accelerator=a100-sxm-40"]}),
    **{f"NeMo H100 {row}": ("nemo", [DATA / "nemo_h100.csv"], {"row": str(row)}) for row in range(1, 7)},
    **{
        f"MLPerf {name}": ("nemo", [DATA / file for file in files], {})
        for name, files in {
            "v4.0 GPT-3": [
                "mlperf_gpt3.yaml",
                "optim/distributed_fused_adam.yaml",
                "mlperf_common.sh",
                "config_DGXH100_64x8x128x4x8_mbs2.sh",
            ],
            "v5.0 Llama 3.1 405B": ["mlperf_common.sh", "config_DGXH100_64x8x288xtp8pp8cp2.sh"],
        }.items()
    },
    "Llama 3.1 405B, torchtitan": ("torchtitan", [DATA / "torchtitan_405b.toml"], {}),
    "Llama 3.1 405B, torchtitan 2024": ("torchtitan", [DATA / "torchtitan_405b_2024.toml"], {}),
    **{f"{name}, launcher": ("nemo", [], {"launcher": name}) for name in LAUNCHER},
}


def launcher_file(path: Path, name: str) -> Path:
    nodes, sizes = LAUNCHER[name]
    model = {
        "micro_batch_size": sizes.get("micro", 1),
        "global_batch_size": 2048,
        "tensor_model_parallel_size": sizes.get("tensor", 1),
        "pipeline_model_parallel_size": sizes.get("pipeline", 1),
        "virtual_pipeline_model_parallel_size": sizes.get("virtual"),
        "context_parallel_size": sizes.get("context", 1),
        "encoder_seq_length": sizes.get("length", 2048),
        "num_layers": sizes["layers"],
        "hidden_size": sizes["hidden"],
        "ffn_hidden_size": sizes.get("ffn", 4 * sizes["hidden"]),
        "num_attention_heads": sizes["heads"],
        "sequence_parallel": sizes.get("tensor", 1) > 1,
        "activations_checkpoint_granularity": None if "more" in sizes else "selective",
        "tokenizer": {"type": "GPT2BPETokenizer"},
        "optim": {"name": "distributed_fused_adam"},
    }
    trainer = {"num_nodes": nodes, "devices": 8, "precision": "bf16"}
    path.write_text(json.dumps({"trainer": trainer, "model": model | sizes.get("more", {})}))
    return path


@pytest.mark.parametrize("name", RUNS)
def test_it_ran_so_it_fits(tmp_path: Path, name: str) -> None:
    tool, files, options = RUNS[name]
    if "launcher" in options:
        files, options = [launcher_file(tmp_path / "a.yaml", options["launcher"])], {}
    path = tmp_path / "scenario.yaml"
    path.write_text(scenario_text(import_files(tool, files, **options)))
    result = CliRunner().invoke(app, ["simulate", str(path), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["fits_memory"] is True


def test_there_are_twenty() -> None:
    assert len(RUNS) >= 20
