"""NeMo's training YAML and its table of recommended configurations: facts, traps, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from import_samples import DATA, changed, refusal, written

from pipesim.importers.nemo_table import describe_rows
from pipesim.importers.readers import import_files


def nemo_yaml(path: Path, **sizes: Any) -> Path:
    defaults = {
        "experts": None,
        "ffn": "${multiply:4, ${.hidden_size}}",
        "heads": 96,
        "context": 1,
        "expert": 1,
    }
    sizes = defaults | sizes
    path.write_text(
        "run:\n  name: sample\n  results_dir: ${base_results_dir}/${.name}\n"
        f"trainer:\n  num_nodes: {sizes['nodes']}\n  devices: 8\n  precision: bf16\n"
        "model:\n"
        f"  micro_batch_size: {sizes['micro']}\n  global_batch_size: {sizes['total']}\n"
        f"  tensor_model_parallel_size: {sizes['tensor']}\n"
        f"  pipeline_model_parallel_size: {sizes['pipeline']}\n"
        f"  virtual_pipeline_model_parallel_size: {sizes['chunks'] or 'null'}\n"
        f"  context_parallel_size: {sizes['context']}\n"
        f"  expert_model_parallel_size: {sizes['expert']}\n"
        f"  encoder_seq_length: {sizes['length']}\n  max_position_embeddings: ${{.encoder_seq_length}}\n"
        f"  num_layers: {sizes['layers']}\n  hidden_size: {sizes['hidden']}\n"
        f"  ffn_hidden_size: {sizes['ffn']}  # 4 * hidden_size\n"
        f"  num_attention_heads: {sizes['heads']}\n  sequence_parallel: {sizes['tensor'] > 1}\n"
        + (
            f"  num_moe_experts: {sizes['experts']}\n  moe_router_topk: 2\n  moe_ffn_hidden_size: 14336\n"
            "  activation: fast-swiglu\n"
            if sizes["experts"]
            else ""
        )
        + "  make_vocab_size_divisible_by: 128\n"
        "  tokenizer:\n    library: megatron\n    type: GPT2BPETokenizer\n"
        "    vocab_file: ${data_dir}/vocab.json\n"
        "  optim:\n    name: distributed_fused_adam\n"
    )
    return path


NEMO_LAUNCHER = [
    # nodes, tensor, pipeline, chunks, context, expert, micro, total, length, layers, hidden, heads, then
    # microbatches and the bubble overhead in percent
    (128, 4, 8, 6, 1, 1, 1, 2048, 2048, 96, 12288, 96, 64, 1.82),
    (64, 8, 8, 12, 8, 1, 1, 32, 16384, 96, 12288, 96, 32, 1.82),
    (128, 2, 4, None, 1, 1, 2, 2048, 2048, 48, 8192, 64, 8, 37.5),
    (1, 2, 4, 3, 1, 1, 1, 8, 2048, 12, 12288, 96, 8, 12.5),
    (128, 4, 4, 5, 2, 1, 1, 2048, 8192, 80, 8192, 64, 64, 0.94),
    (16, 1, 1, None, 2, 1, 1, 2048, 8192, 32, 4096, 32, 32, 0.0),
    (8, 1, 4, 8, 1, 8, 1, 256, 4096, 32, 4096, 32, 16, 2.34),
]


@pytest.mark.parametrize("row", NEMO_LAUNCHER)
def test_nemo_launcher(tmp_path: Path, row: tuple[Any, ...]) -> None:
    names = (
        "nodes",
        "tensor",
        "pipeline",
        "chunks",
        "context",
        "expert",
        "micro",
        "total",
        "length",
        "layers",
    )
    sizes = dict(zip((*names, "hidden", "heads"), row[:12], strict=True))
    if sizes["expert"] > 1:
        sizes |= {"experts": 8, "ffn": 14336}
    microbatches, bubble_percent = row[12:]
    scenario = written(import_files("nemo", nemo_yaml(tmp_path / "sample.yaml", **sizes)), tmp_path)
    model, parallel, batch = scenario.model, scenario.parallel, scenario.batch
    assert model is not None
    assert scenario.cluster is not None
    assert scenario.cluster.num_gpus == 8 * sizes["nodes"]
    assert (model.num_hidden_layers, model.hidden_size, model.seq_length) == (
        sizes["layers"],
        sizes["hidden"],
        sizes["length"],
    )
    assert model.intermediate_size == (14336 if sizes["expert"] > 1 else 4 * sizes["hidden"])
    chunks = sizes["chunks"] or 1
    assert (parallel.tensor, parallel.pipeline, parallel.virtual_stages) == (
        sizes["tensor"],
        sizes["pipeline"],
        chunks,
    )
    assert (parallel.context, parallel.expert) == (sizes["context"], sizes["expert"])
    assert batch.num_microbatches == microbatches
    overhead = 100 * (parallel.pipeline - 1) / (chunks * batch.num_microbatches)
    assert overhead == pytest.approx(bubble_percent, abs=0.006)


def test_nemo_405b(tmp_path: Path) -> None:
    imported = import_files("nemo", DATA / "nemo_405b.yaml")
    scenario = written(imported, tmp_path)
    model, parallel = scenario.model, scenario.parallel
    assert model is not None
    assert scenario.cluster is not None
    assert (scenario.name, scenario.cluster.num_gpus) == ("llama_405b", 4608)
    assert (parallel.tensor, parallel.pipeline, parallel.virtual_stages) == (8, 9, 7)
    assert (parallel.context, parallel.data, scenario.batch.num_microbatches) == (2, 32, 63)
    assert (model.num_hidden_layers, model.num_key_value_heads, model.vocab_size) == (126, 16, 129024)
    assert (model.gated_mlp, model.biases, model.tie_word_embeddings) == (True, False, False)
    assert scenario.optimizer == "sharded"
    assert "model.overlap_p2p_comm" in imported.not_used
    assert parallel.overlap_gradients
    assert "model.optim.overlap_grad_sync" not in imported.not_used


@pytest.mark.parametrize(
    ("replacements", "words"),
    [
        ([("num_nodes: 576", "num_nodes: 575")], "does not divide the run's 4600 GPUs"),
        ([("global_batch_size: 2016", "global_batch_size: 1")], "global batch 1 is not a multiple"),
        ([("num_layers: 126", "num_layers: 125")], "would be dropped"),
        ([("num_layers: 126", "num_layers: 1000000001")], "at most 100000"),
        ([("num_layers: 126", 'num_layers: "126"')], "model.num_layers: found '126'"),
        ([("num_layers: 126", "num_layers: ${nowhere}")], "hangs on ${nowhere}"),
        ([("num_layers: 126", "num_layers: ${.num_layers}")], "circle"),
        ([("  hidden_size: 16384\n", "")], "model.hidden_size: missing"),
        ([("model:", "modell:")], "holds no model: mapping"),
        ([("sequence_parallel: true", "sequence_parallel: maybe")], "true or false"),
    ],
)
def test_nemo_refusals(tmp_path: Path, replacements: list[tuple[str, str]], words: str) -> None:
    assert words in refusal(import_files, "nemo", changed(tmp_path, "nemo_405b.yaml", *replacements))


def test_nemo_mixtral_with_a_batch_smaller_than_its_replicas(tmp_path: Path) -> None:
    sizes = {"nodes": 12, "tensor": 1, "pipeline": 4, "chunks": None, "expert": 8, "micro": 1, "total": 1}
    shape = {"length": 4096, "layers": 56, "hidden": 6144, "heads": 48, "experts": 8, "ffn": 16384}
    path = nemo_yaml(tmp_path / "sample.yaml", **sizes, **shape)
    assert "global batch 1 is not a multiple of micro 1 x data 24" in refusal(import_files, "nemo", path)


@pytest.mark.parametrize(
    ("row", "gpus", "sizes", "microbatches"),
    [
        ("2", 128, (4, 8, 1, 6), 64),
        ("pre_train-llama3-70b-h100-bf16", 64, (4, 4, 2, 5), 64),
        ("70b-h100-fp8", 64, (4, 8, 1, 5), 64),
    ],
)
def test_nemo_table(tmp_path: Path, row: str, gpus: int, sizes: tuple[int, ...], microbatches: int) -> None:
    scenario = written(import_files("nemo", DATA / "nemo_table.csv", row=row), tmp_path)
    parallel = scenario.parallel
    assert scenario.cluster is not None
    assert scenario.cluster.num_gpus == gpus
    assert scenario.cluster.accelerator.name == "h100-sxm"
    assert (parallel.tensor, parallel.pipeline, parallel.context, parallel.virtual_stages) == sizes
    assert scenario.batch.num_microbatches == microbatches


def test_embedding_and_head_count_where_the_layers_alone_do_not_divide() -> None:
    """Llama 3.1 405B has 126 layers on 64 stages; NeMo's recipe counts both ends as a layer."""
    mapping = import_files("nemo", DATA / "nemo_h100.csv", row="2").mapping
    assert mapping["layers"] == [1, *[2] * 62, 1]


def test_nemo_table_names_what_is_wrong_with_a_row() -> None:
    path = DATA / "nemo_table.csv"
    wrong = [(number, problem) for number, _, problem in describe_rows(path) if problem]
    assert wrong == [(1, "tensor 8 x pipeline 6 = 48 does not divide 32 GPUs")]
    message = refusal(import_files, "nemo", path)
    assert "choose one by --row" in message
    assert "1 lora-llama31-405b-h100-bf16 (wrong: tensor 8 x pipeline 6 = 48" in message
    assert "--ignore task" in refusal(import_files, "nemo", path, row="1")
    options = {"row": "1", "ignore": ["task"], "overrides": ["layers=balanced"]}
    assert "48 does not divide the run's 32 GPUs; --gpus N" in refusal(import_files, "nemo", path, **options)
    imported = import_files("nemo", path, num_gpus=48, **options)
    assert imported.mapping["parallel"]["data"] == 1


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("9", "there are rows 1 to 5"),
        ("nothing", "no row is named 'nothing'"),
        ("70b", "names several rows: 3"),
        ("5", "nemotron4-340b' is not in the table and no preset"),
    ],
)
def test_nemo_table_rows_that_cannot_be_chosen(row: str, words: str) -> None:
    assert words in refusal(import_files, "nemo", DATA / "nemo_table.csv", row=row)


@pytest.mark.parametrize(
    ("replacements", "words"),
    [
        ([("fp8,128.0", "fp8,=cmd|'/c calc'!A1")], "num_gpus: row 2: found \"=cmd|'/c calc'!A1\""),
        ([("fp8,128.0", "fp8,128.5")], "found '128.5'; a whole number is needed"),
        ([("fp8,128.0", "fp8,-128")], "found '-128'"),
        ([("fp8,128.0", "fp8,1e99")], "found '1e99'"),
        ([("fp8,128.0", "fp8,")], "at least 1"),
        ([("gpt3,175b,h100", "gpt3,175b,@SUM(A1)")], "system: row 2: found '@SUM(A1)'; a plain name"),
        ([("num_gpus", "gpus")], "has no column num_gpus"),
        ([("seq_len,", "seq_len,seq_len,")], "two columns"),
        ([("pre_train,gpt3,175b,", "pre_train,gpt3,")], "row 2 has 14 cells"),
    ],
)
def test_nemo_table_refusals(tmp_path: Path, replacements: list[tuple[str, str]], words: str) -> None:
    assert words in refusal(import_files, "nemo", changed(tmp_path, "nemo_table.csv", *replacements), row="2")


@pytest.mark.parametrize("text", ["", "\n\n", "a,b\n1,2\n", '"a'])
def test_nemo_table_other_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    assert str(path) in refusal(import_files, "nemo", path)
