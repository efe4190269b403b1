"""Wrong scenarios: each is refused with one line that names the key, what was found and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import ScenarioError
from pipesim.scenario import apply_overrides, load_scenario, scenario_from_mapping
from pipesim.scenario.loading import parse_yaml

MODEL = """\
model: {preset: gpt3-175b}
cluster: {accelerator: a100-sxm-80, num_nodes: 16, gpus_per_node: 8, inter_node: ib-hdr}
parallel: {pipeline: 8, tensor: 8}
batch: {global: 128, micro: 1}
"""
DIRECT = """\
parallel: {pipeline: 4}
batch: {microbatches: 8}
costs: {forward: 1 s, backward: 2 s}
"""

CHANGED = [
    # base, overrides, key, words
    (MODEL, ["parallel.pipelin=8"], "parallel.pipelin", ["unknown key", "'pipeline'", "virtual_stages"]),
    (MODEL, ["model={presett: gpt3-175b}"], "model.presett", ["unknown key", "'preset'"]),
    (MODEL, ["modle=x"], "modle", ["unknown key", "'model'"]),
    (MODEL, ["cluster.accelerator.mem=1 GB"], "cluster.accelerator.mem", ["unknown key", "'memory'"]),
    (MODEL, ["gitter=0.1"], "gitter", ["unknown key"]),
    (MODEL, ["network.speed=fifo"], "network.speed", ["unknown key", "p2p"]),
    (MODEL, ["network.mode=fast"], "network.mode", ["'fast'", "fair, fifo, ideal"]),
    (MODEL, ["network.all_reduce=tree", "optimizer=sharded"], "network.all_reduce", ["tree", "auto, ring"]),
    (MODEL, ["jitter.compute=5"], "jitter.compute", ["found 5", "at most 1", "0.02 means 2 %"]),
    *((MODEL, [f"headroom={share}"], "headroom", ["at least 0 and below 1"]) for share in (5, 1, "150 %")),
    (MODEL, ["parallel.expert_dispatch=deepep"], "parallel.expert_dispatch", ["the model has experts"]),
    (MODEL, ["parallel.expert_overlap=0.5"], "parallel.expert_overlap", ["the model has experts"]),
    (MODEL, ["parallel.expert_tensor=1"], "parallel.expert_tensor", ["the model has experts"]),
    (MODEL, ["precision.dispatch_format=fp8"], "precision.dispatch_format", ["the model has experts"]),
    (MODEL, ["parallel.context_exchange=ulysses"], "parallel.context_exchange", ["context above 1"]),
    (MODEL, ["offload.bandwidth=10 GB/s"], "offload.bandwidth", ["only with offload.activations"]),
    (MODEL, ["model=mixtral-8x7b", "model.n_group=2", "parallel.sequence_parallel=true"],
     "model.n_group", ["only with model.topk_group"]),
    (MODEL, ["cluster.nics_per_node=3"], "cluster.nics_per_node", ["found 3", "8 devices"]),
    (MODEL, ["cluster.oversubscription=2"], "cluster.nodes_per_switch", ["missing"]),
    (MODEL, ["cluster.machine=dgx"], "cluster.machine", ["no preset of machines", "dgx-a100"]),
    (MODEL, ["parallel.contxt=2"], "parallel.contxt", ["unknown key", "'context'"]),
    (MODEL, ["cluster.accelerator.memory=80 Gb"], "cluster.accelerator.memory", ["bits", "10 GB"]),
    (MODEL, ["cluster.accelerator.memory=80"], "cluster.accelerator.memory", ["without a unit"]),
    (MODEL, ["cluster.inter_node.bandwidth=50"], "cluster.inter_node.bandwidth", ["without a unit"]),
    (MODEL, ["cluster.inter_node.bandwidth=-1 GB/s"], "cluster.inter_node.bandwidth", ["above zero"]),
    (MODEL, ["cluster.accelerator=a100-smx-80"], "cluster.accelerator", ["no preset", "'a100-sxm-80'"]),
    (MODEL, ["cluster.inter_node=ib-hdrr"], "cluster.inter_node", ["'ib-hdr'"]),
    (MODEL, ["model=gpt3-175"], "model", ["'gpt3-175b'"]),
    (MODEL, ["model.preset=7"], "model.preset", ["found 7"]),
    (MODEL, ["efficiency=h100"], "efficiency", ["'h100-nemo'"]),
    (MODEL, ["efficiency.gemm=1.2"], "efficiency.gemm", ["at most 1"]),
    (MODEL, ["efficiency.attention_kernel=flsh"], "efficiency.attention_kernel", ["'flash'", "unfused"]),
    (MODEL, ["parallel.pipeline=97", "parallel.tensor=1", "cluster.num_nodes=97"],
     "parallel.pipeline", ["97 stages need at least 97 layers, the model has 96"]),
    (MODEL, ["parallel.virtual_stages=13"], "parallel.virtual_stages",
     ["8 ranks x 13 chunks = 104 stages need at least 104 layers"]),
    (MODEL, ["cluster.num_nodes=12"], "parallel", ["64 does not divide", "96 GPUs"]),
    (MODEL, ["cluster.num_nodes=4"], "parallel", ["does not divide", "32 GPUs"]),
    (MODEL, ["parallel.data=3"], "parallel.data", ["= 192", "128 GPUs", "data 2"]),
    (MODEL, ["batch.global=127"], "batch.global", ["not a multiple", "126 or 128"]),
    (MODEL, ["batch.global=1"], "batch.global", ["nearest: 2"]),
    (MODEL, ["batch.microbatches=32"], "batch.microbatches", ["is 64"]),
    (MODEL, ["batch={}"], "batch", ["global", "microbatches"]),
    (MODEL, ["batch.micro=0"], "batch.micro", ["found 0; at least 1"]),
    (MODEL, ["parallel.pipeline=-8"], "parallel.pipeline", ["at least 1"]),
    (MODEL, ["parallel.pipeline=8.5"], "parallel.pipeline", ["found 8.5; a whole number"]),
    (MODEL, ["parallel.pipeline='8'"], "parallel.pipeline", ["found '8'; a whole number"]),
    (MODEL, ["parallel.pipeline=true"], "parallel.pipeline", ["found true; a whole number"]),
    (MODEL, ["parallel.pipeline=null"], "parallel.pipeline", ["found null"]),
    (MODEL, ["parallel.pipeline=99999999999"], "parallel.pipeline", ["at most"]),
    (MODEL, ["parallel={}"], "parallel.pipeline", ["missing", "pipeline ranks"]),
    (MODEL, ["parallel=8"], "parallel", ["found 8; a mapping"]),
    (MODEL, ["parallel.sequence_parallel=yes"], "parallel.sequence_parallel", ["found 'yes'; true or false"]),
    (MODEL, ["parallel.tensor=5", "cluster.gpus_per_node=5"], "parallel.tensor", ["5 does not divide"]),
    (MODEL, ["model.num_key_value_heads=7"], "model.num_key_value_heads", ["do not divide the 96"]),
    (MODEL, ["model.num_key_value_heads=12"], "parallel.tensor", ["12 key-value heads"]),
    (MODEL, ["model.intermediate_size=50001"], "parallel.tensor", ["intermediate_size 50001"]),
    (MODEL, ["model.hidden_size=12289"], "model.num_attention_heads", ["do not divide hidden_size 12289"]),
    (MODEL, ["model.seq_length=2047", "parallel.sequence_parallel=true"], "parallel.tensor", ["2047"]),
    (MODEL, ["model.num_learned_positions=1024"], "model.seq_length", ["2048 tokens", "1024 learned"]),
    (MODEL, ["model={num_hidden_layers: 96}"], "model.hidden_size", ["missing", "more problems"]),
    (MODEL, ["model={preset: llama3-8b, intermediate_size: null}"], "model.intermediate_size", ["gated"]),
    (MODEL, ["model={preset: llama3-8b, hf: x.json}"], "model", ["both a preset and an hf file"]),
    (MODEL, ["model={torch: f}"], "model.torch", ["'f'", "module:factory"]),
    (MODEL, ["model={torch: 'm:f', preset: llama3-8b}"], "model.preset", ["unknown key", "torch, name"]),
    (MODEL, ["model={torch: 'm:f'}"], "parallel.tensor", ["layers are not cut into"]),
    (MODEL, ["layers=[12, 12]"], "layers", ["2 entries", "8"]),
    (MODEL, ["layers=[12, 12, 12, 12, 12, 12, 12, 11]"], "layers", ["95 layers together", "96"]),
    (MODEL, ["layers=[13, 13, 0, 14, 14, 14, 14, 14]"], "layers", ["stage 2", "found 0", "at least 1"]),
    (MODEL, ["layers=evenly"], "layers", ["even, balanced"]),
    (MODEL, ["layers=[]"], "layers", ["even, balanced"]),
    (MODEL, ["recompute=ful"], "recompute", ["'full'", "selective"]),
    (MODEL, ["optimizer=adam"], "optimizer", ["plain, sharded, zero2, zero3, fsdp, zero1"]),
    (MODEL, ["precision=fp8"], "precision.compute", ["a100-sxm-80 has no peak rate for fp8"]),
    (MODEL, ["precision.weight_bytes=-2"], "precision.weight_bytes", ["above zero"]),
    (MODEL, ["network.p2p=async"], "network.p2p", ["overlapped, send-blocking, blocking"]),
    (MODEL, ["seed=-1"], "seed", ["at least 0"]),
    (MODEL, ["price_per_gpu_hour=.nan"], "price_per_gpu_hour", ["finite"]),
    (MODEL, ["cluster=null"], "cluster", ["missing", "costs instead"]),
    (MODEL, ["model=null"], "model", ["missing"]),
    (MODEL, ["cluster.inter_node=null"], "cluster.inter_node", ["missing", "16 nodes"]),
    (MODEL, ["cluster.accelerator={memory: 80 GB}"], "cluster.accelerator.peak", ["missing"]),
    (MODEL, ["cluster.accelerator.peak={bf16: null, fp16: null}"], "cluster.accelerator.peak", ["or fp16"]),
    (MODEL, ["memory_reserve=99 GB"], "memory_reserve", ["found 99 GB", "a100-sxm-80 has 85.09 GB"]),
    (MODEL, ["costs={forward: 1, backward: 1}"], "model", ["costs are stated", "model has no effect"]),
    (MODEL, ["schedule={}"], "schedule", ["either a name"]),
    (MODEL, ["schedule={csv: x.csv, limit: 3}"], "schedule", ["takes no options", "limit"]),
    (DIRECT, ["costs.forward=-1 s"], "costs.forward", ["above zero"]),
    (DIRECT, ["costs.forward=0"], "costs.forward", ["above zero"]),
    (DIRECT, ["costs.forward=.nan"], "costs.forward", ["found nan", "finite"]),
    (DIRECT, ["costs.forward=.inf"], "costs.forward", ["found inf"]),
    (DIRECT, ["costs.forward=1 GB"], "costs.forward", ["'GB' is not a unit"]),
    (DIRECT, ["costs.forward=[1 s, 1 s, 1 s]"], "costs.forward", ["3 entries", "4"]),
    (DIRECT, ["costs.forward=[1, 1, -1, 1]"], "costs.forward", ["stage 2", "above zero"]),
    (DIRECT, ["costs.forward=[]"], "costs.forward", ["empty list"]),
    (DIRECT, ["costs.forward=null"], "costs.forward", ["missing"]),
    (DIRECT, ["costs.backward=null"], "costs.backward", ["missing", "weight_gradient"]),
    (DIRECT, ["costs.input_gradient=1 s"], "costs.weight_gradient", ["go together"]),
    (DIRECT, ["costs.weight_gradient_share=1"], "costs.weight_gradient_share", ["below 1"]),
    (DIRECT, ["costs.p2p.bandwidth=1 GB/s"], "costs.boundary", ["missing", "64 MB"]),
    (DIRECT, ["costs.p2p.speed=1 GB/s"], "costs.p2p.speed", ["unknown key", "latency, bandwidth"]),
    (DIRECT, ["costs.p2p=-1 us"], "costs.p2p.latency", ["at least zero"]),
    (DIRECT, ["costs.activations=1 Gb"], "costs.activations", ["bits"]),
    (DIRECT, ["costs.file=c.yaml"], "costs", ["backward, forward has no effect"]),
    (DIRECT, ["layers=even"], "layers", ["no effect"]),
    (DIRECT, ["recompute=full"], "recompute", ["no effect"]),
    (DIRECT, ["parallel.sequence_parallel=true"], "parallel.sequence_parallel", ["no effect"]),
    (DIRECT, ["costs=null"], None, ["needed: costs, or model and cluster"]),
    (DIRECT, ["batch.microbatches=0"], "batch.microbatches", ["at least 1"]),
]  # fmt: skip


@pytest.mark.parametrize(("base", "overrides", "key", "words"), CHANGED, ids=lambda value: str(value)[:60])
def test_one_message_names_the_key(
    tmp_path: Path, base: str, overrides: list[str], key: str | None, words: list[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(base)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file, overrides)
    message = str(caught.value)
    assert caught.value.key == key
    assert message.startswith((str(file), "--set "))
    for word in words:
        assert word in message
    assert "\n" not in message


TEXTS = [
    (b"", ["is empty"]),
    (b"# nothing\n", ["is empty"]),
    (b"- a\n- b\n", ["list at the top"]),
    (b"just words", ["single value at the top"]),
    (b"a: [1, 2", ["line 1"]),
    (b"a: b: c", ["line 1, column 5", "mapping values are not allowed"]),
    (b"a:\n\t- b", ["line 2"]),
    (b"seed: 1\nseed: 2\n", ["line 2, column 1: duplicate key 'seed'"]),
    (b"batch:\n  micro: 1\n  micro: 2\n", ["line 3", "duplicate key 'micro'"]),
    (b"1: x", ["not text"]),
    (b"? [a]\n: 1", ["not text"]),
    (b"a: &a [*a]", ["contains itself"]),
    (b"a: *nowhere", ["undefined alias"]),
    (b"a: 1\n---\nb: 2\n", ["another document"]),
    (b"a: !!python/object/apply:os.system [ls]", ["could not determine a constructor"]),
    (b"a: !!int x", ["not readable as YAML"]),
    (b"[" * 100_000, ["nested more than 40 levels"]),
    (b"a: " + b"9" * 5000, ["not readable as YAML"]),
    (b"\x89PNG\r\n\x1a\n\x00\x00", ["not a UTF-8 text file"]),
    (b"a: \x00", ["not a text file"]),
    (b"a: \x07", ["not YAML"]),
    ("a: 1".encode("utf-16"), ["not a UTF-8 text file"]),
    (b"#" * (1 << 20) + b"#", ["larger than 1 MiB"]),
]


@pytest.mark.parametrize(("content", "words"), TEXTS, ids=lambda value: str(value)[:30])
def test_files_that_are_no_scenario(tmp_path: Path, content: bytes, words: list[str]) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(content)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file)
    message = str(caught.value)
    assert message.startswith(str(file))
    for word in words:
        assert word in message
    assert "\n" not in message


def test_a_bomb_of_aliases_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    file = tmp_path / "bomb.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(ScenarioError, match="expands to more than"):
        load_scenario(file)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no such file"):
        load_scenario(tmp_path / "none.yaml")
    with pytest.raises(ScenarioError, match="is a directory"):
        load_scenario(tmp_path)
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_scenario("nul\0.yaml")


@pytest.mark.parametrize(
    "override", ["", "a", "=1", "a..b=1", ".a=1", "a .b=1", "a=[1", "seed.x=1", "batch.micro.x=2"]
)
def test_malformed_overrides_name_the_flag(override: str) -> None:
    mapping = {"seed": 1, "batch": {"micro": 1}}
    with pytest.raises(ScenarioError, match="--set"):
        scenario_from_mapping(mapping, overrides=[override])


def test_yaml_1_1_surprises_are_not_swallowed(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    for text, found in (
        ("010", "'010'"),
        ("1:30", "'1:30'"),
        ("off", "'off'"),
        ("2026-01-01", "'2026-01-01'"),
    ):
        file.write_text(DIRECT + f"seed: {text}\n")
        with pytest.raises(ScenarioError, match=f"found {found}; a whole number"):
            load_scenario(file)


def test_anchors_and_merges_are_read(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(DIRECT.replace("batch: {", "batch: &b {").replace("costs:", "name: &n here\ncosts:"))
    assert load_scenario(file).batch.num_microbatches == 8


_KEYS = [
    "model",
    "model.preset",
    "model.hf",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.gated_mlp",
    "cluster",
    "cluster.accelerator",
    "cluster.accelerator.peak",
    "cluster.accelerator.memory",
    "cluster.accelerator.efficiency",
    "cluster.intra_node",
    "cluster.inter_node.bandwidth",
    "parallel",
    "parallel.pipeline",
    "parallel.data",
    "parallel.virtual_stages",
    "batch",
    "batch.global",
    "batch.micro",
    "schedule",
    "schedule.csv",
    "costs",
    "costs.file",
    "costs.forward",
    "costs.p2p",
    "layers",
    "recompute",
    "optimizer",
    "efficiency",
    "efficiency.preset",
    "efficiency.fitted_on",
    "precision",
    "precision.compute",
    "network",
    "seed",
    "name",
    "price_per_gpu_hour",
]
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_VALUES = st.recursive(
    _SCALARS | st.sampled_from(["1 GB", "1 ms", "h100-sxm", "nvlink4"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "preset", "micro"]), inner)
    ),
    max_leaves=4,
)


@given(base=st.sampled_from([MODEL, DIRECT]), key=st.sampled_from(_KEYS), value=_VALUES)
def test_any_value_at_any_key_is_taken_or_refused_in_one_line(base: str, key: str, value: object) -> None:
    mapping = apply_overrides(parse_yaml(base), [f"{key}=null"])
    *parents, last = key.split(".")
    here = mapping
    for parent in parents:
        here = here[parent]
    here[last] = value
    try:
        scenario_from_mapping(mapping)
    except ScenarioError as error:
        refusal = str(error)
    else:
        return
    assert refusal
    assert "\n" not in refusal.replace(str(value), "")


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (
            ["parallel.context_exchange=ulysses", "parallel.context=1"],
            "parallel.context_exchange",
            "no effect",
        ),
        (["offload.bandwidth=10 GB/s", "offload.activations=0"], "offload.bandwidth", "no effect"),
        (["efficiency.expert_layer_floor=1 ms"], "efficiency.expert_layer_floor", "no effect"),
        (["recompute=full", "recompute_layers=50"], "recompute_layers", "at most 12 layers"),
    ],
)
def test_a_varied_key_leaves_others_without_effect_and_says_so(overrides, key, words) -> None:
    assert words in scenario_from_mapping(parse_yaml(MODEL), overrides=overrides).echo[key]
