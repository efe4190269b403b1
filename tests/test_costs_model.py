"""The transformer's cost model against published counts, layer times, step times and memory."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.costs import build_costs
from pipesim.costs.transformer.flops import step_flops
from pipesim.costs.transformer.parameters import model_parameters
from pipesim.errors import ScenarioError
from pipesim.scenario.hardware import Accelerator, Cluster, Link
from pipesim.scenario.resolved import (
    Batch,
    Efficiency,
    LayerSplit,
    Parallel,
    Precision,
    ResolvedScenario,
    ScheduleChoice,
    Transformer,
)
from pipesim.scenario.schema_cluster import PeakKeys

A100 = Accelerator(
    name="a100-sxm-80",
    peak=PeakKeys(bf16="312 TFLOP/s", fp16="312 TFLOP/s"),
    memory="80 GB",
    memory_bandwidth="2039 GB/s",
)
NVLINK = Link(name="nvlink3", bandwidth="300 GB/s", efficiency=0.8, p2p_latency=10e-6, hop_latency=3.4e-6)
INFINIBAND = Link(name="ib-hdr", bandwidth="25 GB/s", efficiency=0.94, p2p_latency=20e-6, hop_latency=14e-6)
# Fitted to the nine rows of Korthikanti et al. table 5 and to the ten of Narayanan et al. table 1.
MEGATRON_2022 = Efficiency(
    name="2022",
    gemm=0.767,
    gemm_fp8=0.6,
    attention=0.5,
    attention_kernel="unfused",
    memory=0.85,
    layer_overhead=0.39e-3,
    tensor_collective_factor=1.0,
    intra_node_bandwidth_factor=1.0,
    unaligned_gemm=1.0,
    source="test",
)
MEGATRON_2021 = MEGATRON_2022.model_copy(update={"name": "2021", "gemm": 0.744, "layer_overhead_s": 1.12e-3})


def gpt(layers, hidden, heads, vocab=51200):
    return Transformer(
        "gpt",
        layers,
        hidden,
        heads,
        heads,
        hidden // heads,
        4 * hidden,
        vocab,
        2048,
        False,
        True,
        True,
        2048,
        "",
    )


def llama(layers, hidden, inner, heads=32, kv_heads=8):
    return Transformer(
        "llama",
        layers,
        hidden,
        heads,
        kv_heads,
        hidden // heads,
        inner,
        128256,
        8192,
        True,
        False,
        False,
        0,
        "",
    )


def scenario(model, *, tensor=8, pipeline=1, data=1, micro=1, microbatches=1, **changes):
    nodes = max(1, tensor * pipeline * data // 8)
    base = ResolvedScenario(
        name="test",
        parallel=Parallel(pipeline, tensor, data, 1, True, None),
        batch=Batch(microbatches, micro, microbatches * micro * data),
        schedule=ScheduleChoice("1f1b"),
        model=model,
        cluster=Cluster(A100, nodes, 8, NVLINK, INFINIBAND),
        costs=None,
        costs_file=None,
        layers=LayerSplit("even"),
        recompute="none",
        optimizer="plain",
        efficiency=MEGATRON_2022,
        precision=Precision("fp16", 2, 4, 12),
        seed=0,
        price_usd_per_gpu_hour=2.0,
        file="s.yaml",
    )
    sequence_parallel = changes.pop("sequence_parallel", True)
    return replace(base, parallel=replace(base.parallel, sequence_parallel=sequence_parallel), **changes)


LLAMA_8B, LLAMA_70B, LLAMA_405B = (
    llama(32, 4096, 14336),
    llama(80, 8192, 28672, heads=64),
    llama(126, 16384, 53248, heads=128),
)


@pytest.mark.parametrize(
    ("model", "billions"),
    [(LLAMA_8B, "8.03"), (LLAMA_70B, "70.55"), (LLAMA_405B, "405.85"), (gpt(96, 12288, 96, 50257), "174.60")],
)
def test_published_parameter_counts(model, billions):
    assert f"{model_parameters(model) / 1e9:.2f}" == billions


@pytest.mark.parametrize("shape", [(24, 2304, 24), (96, 12288, 96), (128, 25600, 160)])
def test_flops_equal_the_papers_closed_forms(shape):
    model, batch, s, V = gpt(*shape), 64, 2048, 51200
    L, h, _ = shape
    model_flops = 72 * batch * s * L * h**2 * (1 + s / (6 * h) + V / (12 * L * h))
    hardware_flops = 96 * batch * s * L * h**2 * (1 + s / (6 * h) + V / (16 * L * h))
    assert step_flops(model, batch) == pytest.approx(model_flops, rel=1e-9)
    assert step_flops(model, batch, recompute="full") == pytest.approx(hardware_flops, rel=1e-9)
    assert step_flops(model, batch) < step_flops(model, batch, recompute="selective") < hardware_flops


# arXiv 2205.05198 table 4: one layer of the 22B model, micro-batch 4, tensor parallel 8, milliseconds.
TABLE_4 = [
    ("none", False, 7.7, 11.9),
    ("none", True, 7.2, 11.8),
    ("full", False, 7.7, 19.5),
    ("selective", False, 7.7, 13.2),
    ("selective", True, 7.2, 13.1),
]


@pytest.mark.parametrize(("recompute", "sequence_parallel", "forward_ms", "backward_ms"), TABLE_4)
def test_layer_times_of_korthikanti_table_4(recompute, sequence_parallel, forward_ms, backward_ms):
    """The parameters were fitted to whole steps, which the model splits a little towards the backward."""
    middle = build_costs(
        scenario(
            gpt(48, 6144, 64),
            pipeline=3,
            micro=4,
            recompute=recompute,
            sequence_parallel=sequence_parallel,
            layers=LayerSplit("list", (46, 1, 1)),
        ),
        num_chunks=1,
    )
    forward, backward = 1e3 * middle.forward_s[1], 1e3 * middle.backward_s[1]
    assert forward == pytest.approx(forward_ms, rel=0.02)
    assert backward == pytest.approx(backward_ms, rel=0.13)
    assert forward + backward == pytest.approx(forward_ms + backward_ms, rel=0.08)


# arXiv 2205.05198 table 5 and section 6.3: shape, pipeline, chunks, data, micro-batch, m, recompute, seconds.
TABLE_5 = [
    ((48, 6144, 64), 1, 1, 1, 4, 1, "full", 1.42),
    ((48, 6144, 64), 1, 1, 1, 4, 1, "selective", 1.10),
    ((96, 12288, 96), 8, 3, 1, 1, 64, "full", 18.13),
    ((96, 12288, 96), 8, 3, 1, 1, 64, "selective", 13.75),
    ((105, 20480, 128), 35, 3, 1, 1, 280, "full", 49.05),
    ((105, 20480, 128), 35, 3, 1, 1, 280, "selective", 37.83),
    ((128, 25600, 160), 64, 1, 1, 1, 512, "full", 94.42),
    ((128, 25600, 160), 64, 1, 1, 1, 512, "selective", 71.49),
    ((105, 20480, 128), 35, 3, 8, 1, 280, "selective", 39.15),
]
# arXiv 2104.04473 table 1: shape, tensor, pipeline, chunks, data, micro-batch, m, seconds by its equation 3.
SC21_TABLE_1 = [
    ((24, 2304, 24), 1, 1, 1, 32, 16, 1, 3.528),
    ((30, 3072, 32), 2, 1, 1, 32, 16, 1, 3.697),
    ((36, 4096, 32), 4, 1, 1, 32, 16, 1, 3.696),
    ((40, 6144, 48), 8, 1, 1, 32, 8, 4, 9.399),
    ((48, 8192, 64), 8, 2, 1, 32, 4, 12, 14.453),
    ((60, 10240, 80), 8, 4, 3, 32, 2, 28, 16.058),
    ((80, 12288, 96), 8, 8, 2, 24, 2, 48, 24.817),
    ((96, 16384, 128), 8, 16, 2, 15, 1, 144, 37.614),
    ((105, 20480, 128), 8, 35, 3, 9, 1, 280, 54.085),
    ((128, 25600, 160), 8, 64, 1, 6, 1, 512, 102.63),
]


def closed_form_step_s(case, chunks):
    """``(m + (p-1)/v) (F + B)`` of the slowest rank, synchronisation, optimizer; transfers are free."""
    table = build_costs(case, num_chunks=chunks)
    per_rank = (table.forward_s + table.backward_s).reshape(chunks, -1).sum(axis=0)
    pipeline, microbatches = case.parallel.pipeline, case.batch.num_microbatches
    sync = [table.gradient_sync_s(stage) for stage in range(table.num_stages)] + table.optimizer_s
    after = sync.reshape(chunks, -1).sum(axis=0).max()
    return (microbatches + (pipeline - 1) / chunks) * per_rank.max() + after


def errors_of(predicted_and_measured):
    return np.array([predicted / measured - 1 for predicted, measured in predicted_and_measured])


def test_step_times_of_korthikanti_table_5():
    rows = []
    for shape, pipeline, chunks, data, micro, microbatches, recompute, measured_s in TABLE_5:
        case = scenario(
            gpt(*shape),
            pipeline=pipeline,
            data=data,
            micro=micro,
            microbatches=microbatches,
            recompute=recompute,
            sequence_parallel=recompute == "selective",
        )
        rows.append((closed_form_step_s(case, chunks), measured_s))
    errors = np.abs(errors_of(rows))
    assert errors.mean() < 0.025
    assert errors.max() < 0.06  # the row with data parallelism, whose extra second no bandwidth explains


def test_step_times_of_narayanan_table_1():
    rows = []
    for shape, tensor, pipeline, chunks, data, micro, microbatches, measured_s in SC21_TABLE_1:
        case = scenario(
            gpt(*shape),
            tensor=tensor,
            pipeline=pipeline,
            data=data,
            micro=micro,
            microbatches=microbatches,
            recompute="full",
            sequence_parallel=False,
            efficiency=MEGATRON_2021,
            precision=Precision("fp16", 2, 2, 16),
        )
        rows.append((closed_form_step_s(case, chunks), measured_s))
    errors = np.abs(errors_of(rows))
    assert errors.mean() < 0.021
    assert errors.max() < 0.05


# arXiv 2205.05198 figure 7, GiB on the first stage: with neither recomputation nor sequence parallelism, and
# with selective recomputation and it. The stage holds microbatches of p stages, with v chunks a little more.
@pytest.mark.parametrize(
    ("shape", "micro", "layers_in_flight", "none_gib", "selective_gib"),
    [
        ((48, 6144, 64), 4, 48, 59.25, 9.5625),
        ((96, 12288, 96), 1, 96 * (1 + 7 / 24), 66.84375, 12.3515625),
        ((105, 20480, 128), 1, 105 * (1 + 34 / 105), 114.0234375, 23.076171875),
        ((128, 25600, 160), 1, 128, 131.25, 26.5625),
    ],
)
def test_activation_memory_of_korthikanti_figure_7(shape, micro, layers_in_flight, none_gib, selective_gib):
    def layer_gib(recompute, sequence_parallel):
        model = gpt(3, shape[1], shape[2])
        case = scenario(
            model, pipeline=3, micro=micro, recompute=recompute, sequence_parallel=sequence_parallel
        )
        return build_costs(case, num_chunks=1).activation_bytes[1] / 2**30

    assert layers_in_flight * layer_gib("none", False) == pytest.approx(none_gib, rel=0.01)
    assert layers_in_flight * layer_gib("selective", True) == pytest.approx(selective_gib, rel=0.025)
    hidden_gib = 2 * micro * 2048 * shape[1] / 2**30
    assert layer_gib("full", False) == pytest.approx(hidden_gib)
    assert layer_gib("full", True) == pytest.approx(hidden_gib / 8)


def test_gated_layer_without_dropout_keeps_34_values_of_hidden_size():
    """8 h + 4 hq + 4 hkv + 6 f bytes a token: 34 h for Llama-3 8B."""
    efficiency = MEGATRON_2022.model_copy(update={"attention_kernel": "flash"})
    case = scenario(replace(LLAMA_8B, num_hidden_layers=3), tensor=1, pipeline=3, efficiency=efficiency)
    table = build_costs(case, num_chunks=1)
    assert table.activation_bytes[1] == 34 * 8192 * 4096


def test_logits_belong_to_the_last_stage():
    table = build_costs(scenario(gpt(8, 1024, 16), tensor=1, pipeline=4), num_chunks=1)
    assert table.activation_bytes[3] - table.activation_bytes[1] == 4 * 2048 * (1024 + 51200)
    # Beside the gradient of the hidden state: that of the logits, or those of queries, keys, values, output
    # and scores.
    assert table.working_bytes[3] == 2 * 2048 * (1024 + 51200)
    assert table.working_bytes[:3].tolist() == [2 * 2048 * 1024 * 5 + 4 * 16 * 2048**2] * 3


def test_fused_loss_keeps_16_bit_logits_and_nothing_beside_them():
    fused = MEGATRON_2022.model_copy(update={"attention_kernel": "flash", "loss_kernel": "fused"})
    table = build_costs(scenario(gpt(8, 1024, 16), tensor=1, pipeline=4, efficiency=fused), num_chunks=1)
    assert table.activation_bytes[3] - table.activation_bytes[1] == 2048 * (4 * 1024 + 2 * 51200)
    assert table.working_bytes[3] == 2 * 2048 * 1024  # in the end only the gradient of the hidden state
    assert table.working_bytes[1] == 2 * 2048 * 1024 * (1 + 2 * 4)  # and of the MLP's two inner tensors


def test_placeholders_are_one_16_bit_buffer_for_each_weight_shape():
    def working(placeholders):
        chosen = MEGATRON_2022.model_copy(update={"weight_gradient_placeholders": placeholders})
        case = scenario(LLAMA_8B, tensor=2, pipeline=4, efficiency=chosen)
        return build_costs(case, num_chunks=1).working_bytes

    layer = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336)
    head = 128256 * 4096
    assert (working(True) - working(False)).tolist() == [layer] * 3 + [layer + head]


def test_full_recompute_needs_one_whole_layer_while_it_runs():
    full = build_costs(scenario(gpt(4, 8192, 64), pipeline=4, recompute="full"), num_chunks=1)
    none = build_costs(scenario(gpt(4, 8192, 64), pipeline=4), num_chunks=1)
    both = [table.activation_bytes[1] + table.working_bytes[1] for table in (full, none)]
    assert both[0] == pytest.approx(both[1])
    assert full.working_bytes[1] - none.working_bytes[1] > 4 * none.activation_bytes[1] / 5


@given(
    layers_per_stage=st.integers(1, 3),
    pipeline=st.integers(1, 4),
    chunks=st.integers(1, 3),
    tensor=st.sampled_from([1, 2, 4, 8]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    kernel=st.sampled_from(["flash", "unfused"]),
    gated=st.booleans(),
)
def test_parts_add_up(layers_per_stage, pipeline, chunks, tensor, recompute, kernel, gated):
    num_layers = layers_per_stage * pipeline * chunks
    model = replace(LLAMA_8B if gated else gpt(1, 4096, 32), num_hidden_layers=num_layers)
    efficiency = MEGATRON_2022.model_copy(update={"attention_kernel": kernel})
    table = build_costs(
        scenario(model, tensor=tensor, pipeline=pipeline, recompute=recompute, efficiency=efficiency),
        num_chunks=chunks,
    )
    assert table.num_stages == pipeline * chunks
    assert sum(table.forward_parts_s.values()) == pytest.approx(table.forward_s)
    assert sum(table.backward_parts_s.values()) == pytest.approx(table.backward_s)
    assert table.input_gradient_s + table.weight_gradient_s == pytest.approx(table.backward_s)
    assert (table.weight_gradient_s > 0).all()
    assert (table.input_gradient_s > 0).all()
    assert ("recompute" in table.backward_parts_s) == (recompute != "none")


@pytest.mark.parametrize("model", [LLAMA_8B, gpt(32, 4096, 32), replace(LLAMA_8B, tie_word_embeddings=True)])
def test_stages_hold_every_parameter_once_but_a_tied_embedding_twice(model):
    def held(pipeline):
        return build_costs(scenario(model, tensor=1, pipeline=pipeline), num_chunks=1).weight_bytes.sum() / 2

    assert held(1) == model_parameters(model)
    copy = model.vocab_size * model.hidden_size if model.tie_word_embeddings else 0
    assert held(4) == model_parameters(model) + copy


def test_tensor_parallel_devices_cut_matrices_and_copy_norms():
    one, eight = (
        build_costs(scenario(LLAMA_8B, tensor=tensor), num_chunks=1).weight_bytes[0] for tensor in (1, 8)
    )
    norms = 2 * (2 * 32 + 1) * 4096
    assert eight == pytest.approx((one - norms) / 8 + norms)


def test_too_few_key_value_heads_are_copied():
    lone = replace(LLAMA_8B, num_key_value_heads=1)
    two = replace(LLAMA_8B, num_key_value_heads=8)
    costs = [build_costs(scenario(model, tensor=8), num_chunks=1) for model in (lone, two)]
    assert costs[0].weight_bytes[0] == costs[1].weight_bytes[0]
    assert costs[0].forward_s[0] == costs[1].forward_s[0]


def test_sharded_optimizer_divides_state_and_time_over_replicas():
    plain, sharded = (
        build_costs(
            scenario(gpt(8, 4096, 32), pipeline=2, data=4, optimizer="sharded" if sharded else "plain"),
            num_chunks=1,
        )
        for sharded in (False, True)
    )
    assert sharded.optimizer_bytes == pytest.approx(plain.optimizer_bytes / 4)
    assert sharded.optimizer_s == pytest.approx(plain.optimizer_s / 4)
    # Gradients of 4 bytes move once and weights of 2 once, in place of gradients twice.
    bandwidth_s = plain.gradient_bytes[0] / 23.5e9 * 3 / 4
    assert plain.gradient_sync_s(0) - sharded.gradient_sync_s(0) == pytest.approx(bandwidth_s / 2, rel=1e-3)


def test_tied_embedding_is_reduced_between_first_and_last_rank():
    tied = gpt(8, 4096, 32)
    table = build_costs(scenario(tied, pipeline=4), num_chunks=1)
    assert table.gradient_ring is None
    assert table.tied_embedding.seconds > 51200 * 4096 / 8 * 4 / 23.5e9
    assert table.fixed_sync_s.tolist() == [0, 0, 0, 0]
    untied = build_costs(scenario(replace(tied, tie_word_embeddings=False), pipeline=4), num_chunks=1)
    assert untied.tied_embedding is None
    assert build_costs(scenario(tied, pipeline=1), num_chunks=4).tied_embedding is None


def test_balanced_split_relieves_the_stage_with_the_head():
    model = replace(LLAMA_8B, num_hidden_layers=40)
    flash = MEGATRON_2022.model_copy(update={"attention_kernel": "flash"})

    def slowest(split):
        case = scenario(model, pipeline=8, layers=split, efficiency=flash)
        table = build_costs(case, num_chunks=1)
        return (table.forward_s + table.backward_s).max(), table.provenance["layers per stage"]

    balanced_s, words = slowest(LayerSplit("balanced"))
    assert words.endswith(", 4")
    assert balanced_s < slowest(LayerSplit("even"))[0]
    for last in range(1, 6):
        others = np.full(7, (40 - last) // 7) + (np.arange(7) < (40 - last) % 7)
        assert balanced_s <= slowest(LayerSplit("list", (*others.tolist(), last)))[0] * (1 + 1e-12)


def test_unaligned_widths_slow_the_products():
    """BLOOM's h = 14400 over 8 devices is 1800 wide, no multiple of 64."""
    efficiency = MEGATRON_2022.model_copy(update={"unaligned_gemm": 0.723})
    for hidden, heads, ratio in ((14400, 120, 1 / 0.723), (14336, 112, 1.0)):
        model = gpt(1, hidden, heads)
        slow, fast = (
            build_costs(scenario(model, efficiency=chosen), num_chunks=1).forward_parts_s["gemm"][0]
            for chosen in (efficiency, MEGATRON_2022)
        )
        assert slow / fast == pytest.approx(ratio)


def test_fp8_speeds_up_layers_but_neither_attention_nor_head():
    h100 = Accelerator(
        name="h100",
        peak=PeakKeys(bf16="989 TFLOP/s", fp8="1979 TFLOP/s"),
        memory="80 GB",
        memory_bandwidth="3350 GB/s",
    )
    cluster = Cluster(h100, 1, 8, NVLINK, INFINIBAND)
    efficiency = MEGATRON_2022.model_copy(update={"gemm": 0.5, "gemm_fp8": 0.5, "attention_kernel": "flash"})
    wide, narrow = (
        build_costs(
            scenario(
                LLAMA_8B, cluster=cluster, efficiency=efficiency, precision=Precision(compute, 2, 4, 12)
            ),
            num_chunks=1,
        )
        for compute in ("bf16", "fp8")
    )
    assert wide.forward_parts_s["gemm"] / narrow.forward_parts_s["gemm"] == pytest.approx(1979 / 989)
    for part in ("attention", "head", "memory_bound"):
        assert wide.forward_parts_s[part] == pytest.approx(narrow.forward_parts_s[part])
    assert (wide.peak_flops_per_gpu, narrow.peak_flops_per_gpu) == (989e12, 1979e12)


def test_facts_of_the_step_cover_all_replicas():
    table = build_costs(
        scenario(gpt(8, 4096, 32), tensor=2, pipeline=2, data=4, micro=2, microbatches=3), num_chunks=1
    )
    assert table.tokens_per_step == 4 * 2 * 3 * 2048
    assert table.model_flops_per_step == step_flops(gpt(8, 4096, 32), 24)
    assert (table.num_gpus, table.price_usd_per_gpu_hour, table.memory_limit_bytes) == (16, 2.0, 80e9)
    assert "node" in table.provenance["pipeline links"]
    assert table.boundary_bytes.tolist() == [2 * 2 * 2048 * 4096 / 2, 0.0]


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"tensor": 6}, "parallel.tensor", "32 attention heads do not divide over 6"),
        ({"pipeline": 64}, "parallel", "64 stages need at least 64 layers"),
        ({"pipeline": 2, "layers": LayerSplit("list", (30, 1))}, "layers", "31 layers together"),
        (
            {"precision": Precision("fp8", 2, 4, 12)},
            "precision",
            "a100-sxm-80 has no fp8 rate; it has bf16, fp16",
        ),
    ],
)
def test_impossible_shapes_are_refused_with_file_and_key(changes, key, words):
    with pytest.raises(ScenarioError, match=words) as caught:
        build_costs(scenario(LLAMA_8B, **changes), num_chunks=1)
    assert (caught.value.file, caught.value.key) == ("s.yaml", key)


def test_weight_gradients_need_32_sbh_of_a_gpt_layer():
    """arXiv 2401.10241 table 1: of (34 + 5 a s / h) s b h bytes W keeps 32 s b h."""
    case = scenario(gpt(8, 2304, 24), tensor=1, pipeline=8)
    costs = build_costs(case, num_chunks=1)
    share = costs.deferred_bytes[1] / costs.activation_bytes[1]
    assert share == pytest.approx(32 / (34 + 5 * 24 * 2048 / 2304))
