"""Costs traced from PyTorch modules, against published figures, closed forms and real tensors on a CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import traced_models
from executor_pool import shared_pool
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.costs import build_costs
from pipesim.costs.traced.pipeline_model import (
    import_factory,
    load_pipeline_model,
    searching,
    stage_skips,
)
from pipesim.costs.traced.times import KERNELS_OF_A_LAYER, kernel_rates, layer_times
from pipesim.costs.traced.trace import trace_model
from pipesim.costs.traced.traced_memory import stage_bytes
from pipesim.costs.transformer.activation_memory import stage_activations
from pipesim.costs.transformer.flops import layer_attention_flops, layer_gemm_flops, step_flops
from pipesim.costs.transformer.layer import LayerKind
from pipesim.costs.transformer.parameters import model_parameters
from pipesim.costs.transformer.setting import layer_setting
from pipesim.costs.transformer.transformer_costs import model_costs
from pipesim.errors import PipesimError, ScenarioError, ScheduleError
from pipesim.executor import FactoryWorkload
from pipesim.executor.models import StageModule, build_model, build_stage, sample
from pipesim.executor.saved_bytes import ActivationMeter
from pipesim.executor.workload import workload_from_scenario
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.prediction import predict
from pipesim.questions.execution import execute_scenario, schedule_of
from pipesim.questions.memory_advice import changes_for_memory
from pipesim.scenario import load_scenario, scenario_from_mapping
from pipesim.scenario.resolve_hardware import BORROWED_ERROR_BAND

TESTS = str(Path(__file__).parent)
SCENARIOS = Path(__file__).parent.parent / "scenarios"
GPT = traced_models.GPT


def scenario_of(model: str, **keys: object):
    """One GPU a rank, times without launches unless stated."""
    pipeline = keys.pop("pipeline", 2)
    mapping = {
        "model": {"torch": f"traced_models:{model}"},
        "cluster": {"accelerator": "a100-sxm-80", "num_nodes": 1, "gpus_per_node": pipeline},
        "parallel": {"pipeline": pipeline},
        "batch": {"micro": 8, "microbatches": 4},
    }
    return scenario_from_mapping(mapping | keys, file=f"{TESTS}/made_up.yaml")


@pytest.mark.parametrize(
    ("factory", "published_gmacs", "within", "parameters"),
    [
        # torchvision's table of ResNet-50: 4.09 GMACs and 25,557,032 parameters.
        ("resnet:resnet50", 4.09, 2e-3, 25_557_032),
        # arXiv 2212.09748, tables 1, 4 and 9 (whose Gflops are multiply-adds): 118.64 and 675 million
        ("dit:dit_xl_2", 118.64, 1e-3, 675e6),
        ("dit:dit_xl_2_512", 524.60, 1e-3, 675e6),
    ],
)
def test_flops_and_parameters_are_the_published_ones(factory, published_gmacs, within, parameters):
    trace = trace_model(factory, str(SCENARIOS), 2, "bfloat16")
    forward = sum(layer.forward.model_flops for layer in trace.layers)
    assert forward / 2 / 2e9 == pytest.approx(published_gmacs, rel=within)
    backward = sum(layer.backward.model_flops for layer in trace.layers)
    # Twice the forward, but for the gradient of the input images.
    assert 1.95 < backward / forward < 2
    assert sum(layer.num_parameters for layer in trace.layers) == pytest.approx(parameters, rel=1e-3)


@pytest.mark.parametrize(
    ("factory", "published_gmacs", "parameters"),
    [
        # arXiv 2401.03048: 673.68 M and 5572.69 G (recalled; models/latte.py counts three videos),
        # which modulates every frame and place apart: 30.1 G that are not among ours.
        ("video_dit:latte_xl_2", 5572.69 / 3 - (14 * (15 + 255) * 6 + 15 * 2) * 1152**2 / 1e9, 673.68e6),
        # Keras' preset has 11,135,332,352 parameters; ours 46 more tables of relative positions. By hand,
        # h = 4096: 24 x 512 tokens through 4 h^2 + 30720 h; 24 x 128 through 6 h^2 + 30720 h and the 512 of
        # the encoder through 2 h^2; 128 through 32128 h.
        (
            "t5:t5_xxl",
            24 * 4096 * (512 * (4 * 4096 + 30_720) + 128 * (6 * 4096 + 30_720) + 512 * 2 * 4096) / 1e9
            + 128 * 32_128 * 4096 / 1e9,
            11_135_332_352 + 46 * 32 * 64,
        ),
    ],
)
def test_products_and_parameters_of_models_with_skips_and_of_video_are_the_published_ones(
    factory, published_gmacs, parameters
):
    trace = trace_model(factory, str(SCENARIOS), 1, "bfloat16")
    products = sum(op.flops for layer in trace.layers for op in layer.forward.ops if op.kind != "attention")
    assert products / 2e9 == pytest.approx(published_gmacs, rel=5e-4)
    assert sum(layer.num_parameters for layer in trace.layers) == pytest.approx(parameters, rel=5e-6)


def test_sdxl_has_the_parameters_of_its_public_checkpoint():
    # Its multiply-adds are checked in benchmarks/test_long_checks.py: the trace takes seconds.
    model = load_pipeline_model("sdxl:sdxl_1024", directory=str(SCENARIOS))
    with torch.device("meta"):
        layers = [layer() for layer in model.layers]
    assert sum(p.numel() for layer in layers for p in layer.parameters()) == 2_567_463_684


def test_a_small_t5_learns_through_every_parameter():
    with searching(str(SCENARIOS)):
        factory = import_factory("t5:t5", str(SCENARIOS))
        model = factory(2, width=32, inner=64, num_heads=4, num_layers=2, lengths=(6, 4))
    layers = [layer() for layer in model.layers]
    whole = StageModule(layers, sliced=False, taken=[model.taken_by(at) for at in range(len(layers))])
    inputs, targets = model.sample(torch.Generator().manual_seed(0))
    output, _, _ = whole(inputs)
    assert output.shape == (2, 4, 32_128)
    model.loss(output, targets).backward()
    assert all(parameter.grad is not None for parameter in whole.parameters())


def test_held_bytes_of_a_stage_with_skips_are_what_autograd_saves_for_real():
    workload = FactoryWorkload("executor_models:unet")
    model, trace = build_model(workload), trace_model("executor_models:unet", TESTS, 3, "float32")
    crossing = stage_skips(model.skips, (4, 4))
    assert [skip.layer for skip in crossing] == [0, 1, 2, 3]
    layers = build_stage(workload, model, 0, 1)
    taken = [model.taken_by(at) for at in range(8)]
    first = StageModule(layers[:4], sliced=False, taken=taken[:4], needed=range(4))
    second = StageModule(layers[4:], sliced=False, first=4, taken=taken[4:])
    x, _ = sample(workload, model, 0, 0, 0)
    meter = ActivationMeter([first])
    with meter.watching("one"):
        y, _, made = first(x)
    meter.hold("one", (x, y, *made.values()))
    assert stage_bytes(trace.layers[:4], None, recompute=False, handed_on=range(4))[0] == meter.bytes
    meter = ActivationMeter([second])
    x, *skips = (each.detach().clone().requires_grad_() for each in (y, *made.values()))
    with meter.watching("one"):
        y, _, _ = second(x, skips=dict(zip(made, skips, strict=True)))
    meter.hold("one", (x, y, *skips))
    taken_bytes = sum(trace.layers[skip.layer].message_bytes for skip in crossing)
    held, _ = stage_bytes(trace.layers[4:], None, recompute=False, taken_bytes=taken_bytes)
    assert held == meter.bytes


def test_a_gpt_layer_is_the_closed_form_where_both_count_the_same():
    model, micro = GPT, 8
    trace = trace_model("traced_models:gpt", TESTS, micro, "bfloat16")
    layer, tokens = trace.layers[1], micro * model.seq_length
    assert len(layer.forward.ops) == KERNELS_OF_A_LAYER
    assert len(layer.backward.ops) == 2 * KERNELS_OF_A_LAYER
    closed = layer_gemm_flops(model, tokens) + layer_attention_flops(model, micro)
    assert layer.forward.model_flops == closed
    assert layer.backward.model_flops == 2 * closed
    of_weights = layer.whole_backward.model_flops - layer.input_gradient.model_flops
    assert of_weights == layer_gemm_flops(model, tokens)
    assert trace.model_flops == step_flops(model, micro)
    assert sum(one.num_parameters for one in trace.layers) == model_parameters(model)

    scenario = scenario_of(
        "gpt", pipeline=1, efficiency={"preset": "a100-megatron", "attention_kernel": "flash"}
    )
    assert scenario.cluster is not None
    assert scenario.efficiency is not None
    traced = build_costs(scenario, num_chunks=1)
    stated = model_costs(scenario, model, scenario.cluster, scenario.efficiency, num_chunks=1)
    assert traced.weight_bytes == stated.weight_bytes
    assert traced.gradient_bytes == stated.gradient_bytes
    assert traced.optimizer_bytes == stated.optimizer_bytes
    assert traced.tokens_per_step == stated.tokens_per_step
    assert traced.model_flops_per_step == stated.model_flops_per_step
    middle = layer_times(
        layer,
        kernel_rates(scenario, scenario.cluster, scenario.efficiency),
        recompute=False,
        gradient_bytes=0,
    )
    assert middle.forward_parts_s["overhead"] == pytest.approx(scenario.efficiency.layer_overhead_s)
    assert middle.backward_parts_s["overhead"] == pytest.approx(2 * scenario.efficiency.layer_overhead_s)
    setting = layer_setting(scenario, model, scenario.cluster, scenario.efficiency)
    # A kernel for causal attention runs half of what the model is said to ask for.
    run = sum(op.flops for op in layer.forward.ops if op.kind == "attention")
    assert run == layer_attention_flops(model, micro) / 2

    # 34 bytes a value of the hidden state, of which two are masks of dropout that these layers do not have;
    # traced, also 4 bytes a token and head of the softmax's sum, and 8 a token of two norms.
    values = tokens * model.hidden_size
    held = stage_activations(setting, (LayerKind(False),), first=False, last=False).held
    assert held == 34 * values
    small = 4 * tokens * model.num_attention_heads + 8 * tokens
    assert layer.inner_bytes + layer.input_bytes == 32 * values + small


@pytest.mark.parametrize(
    ("factory", "micro", "cuts"),
    [
        ("traced_models:cnn", 2, ((0, 4), (0, 2), (1, 3), (2, 4))),
        ("traced_models:built", 5, ((0, 4), (1, 3), (2, 4))),
        ("traced_models:gpt", 2, ((0, 4), (1, 2), (3, 4))),
    ],
)
def test_held_bytes_are_what_autograd_saves_for_real(factory, micro, cuts):
    trace = trace_model(factory, TESTS, micro, "float32")
    workload = FactoryWorkload(factory, microbatch_size=micro)
    model = build_model(workload)
    for begin, end in cuts:
        x, targets = sample(workload, model, 0, 0, 0)
        layers = build_stage(workload, model, 0, 1)
        with torch.no_grad():
            for before in layers[:begin]:
                x = before(x)
        stage = StageModule(layers[begin:end], sliced=False)
        meter = ActivationMeter([stage])
        # The stage's input comes as a message; writing over it is allowed inside a stage only.
        x = (x.clone().requires_grad_() * 1 if begin else x).contiguous()
        with meter.watching("one"):
            y, _, _ = stage(x)
            if end == len(layers):
                y = model.loss(y, targets)
        meter.hold("one", (x, y))
        loss = trace.loss if end == len(layers) else None
        held, working = stage_bytes(trace.layers[begin:end], loss, recompute=False)
        assert held == meter.bytes, (begin, end)
        assert working > 0


def test_the_peak_is_what_the_allocator_gave_out_for_real():
    workload = FactoryWorkload("traced_models:gpt", microbatch_size=2)
    model = build_model(workload)
    first, *middle = build_stage(workload, model, 0, 1)[:3]
    with torch.no_grad():
        message = first(sample(workload, model, 0, 0, 0)[0])
    for layer in middle:
        for parameter in layer.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))

    def forward_and_backward() -> None:
        y = x = message.clone().requires_grad_()
        for layer in middle:
            y = layer(y)
        torch.autograd.backward(
            [y], [torch.empty_like(y)], inputs=[x, *torch.nn.ModuleList(middle).parameters()]
        )

    forward_and_backward()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        forward_and_backward()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    allocated = np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    layers = trace_model("traced_models:gpt", TESTS, 2, "float32").layers[1:3]
    held, working = stage_bytes(layers, None, recompute=False)
    assert held + working == pytest.approx(allocated.max(), rel=1e-3)


def test_one_matrix_by_hand():
    scenario = scenario_of(
        "linear",
        efficiency={"preset": "a100-megatron", "gemm": 0.5, "memory": 0.8, "layer_overhead": "20 us"},
        layers=[2, 4],
    )
    costs = build_costs(scenario, num_chunks=1)
    width, micro = traced_models.WIDTH, 8
    memory_rate, peak = 2039e9 * 0.8, 312e12 * 0.5
    weights, values = 2 * width**2, 2 * micro * width
    kernel = max(2 * micro * width**2 / peak, (weights + 2 * values) / memory_rate) + 20e-6 / 10
    adding = width**2 * (4 + 4 + 2) / memory_rate
    # Stage 0 computes no gradient of the model's input.
    np.testing.assert_allclose(costs.forward_s[0], 2 * kernel)
    np.testing.assert_allclose(costs.backward_s[0], 3 * kernel + 2 * adding)
    np.testing.assert_allclose(costs.weight_gradient_s[0], 2 * (kernel + adding))
    np.testing.assert_allclose(costs.input_gradient_s[0], kernel)
    loss_s = costs.forward_s[1] - 4 * kernel
    assert 0 < loss_s < 6 * kernel
    np.testing.assert_allclose(costs.weight_gradient_s[1], 4 * (kernel + adding))
    np.testing.assert_allclose(costs.backward_s, costs.input_gradient_s + costs.weight_gradient_s)
    np.testing.assert_allclose(sum(costs.backward_parts_s.values()), costs.backward_s)
    assert costs.boundary_bytes.tolist() == [values, 0]
    assert costs.weight_bytes.tolist() == [2 * weights, 4 * weights]
    assert (costs.tokens_per_step, costs.samples_per_step) == (None, 4 * 8)


def test_grouped_convolutions_both_ways_and_operations_of_others():
    trace = trace_model("traced_models:grouped", TESTS, 2, "float32")
    forward, back, other = trace.layers
    # Every output value of the one, and input value of the other, meets 3 x 3 values of 2 and of 4 channels.
    assert forward.forward.model_flops == 2 * (2 * 16 * 6 * 6) * (9 * 2)
    assert back.forward.model_flops == 2 * (2 * 16 * 6 * 6) * (9 * 4)
    assert back.backward.model_flops == 2 * back.forward.model_flops
    assert back.input_gradient.model_flops == back.forward.model_flops
    assert forward.backward.model_flops == forward.forward.model_flops
    assert other.forward.model_flops == 0
    costs = build_costs(scenario_of("grouped", batch={"micro": 2, "microbatches": 2}), num_chunks=1)
    assert costs.provenance["counted by bytes alone"] == "traced_models::double"
    assert "counted by bytes alone" not in build_costs(scenario_of("linear"), num_chunks=1).provenance


def test_what_asks_for_values_while_it_is_made_is_made_for_real():
    trace = trace_model("traced_models:asking", TESTS, 8, "bfloat16")
    plain = trace_model("traced_models:linear", TESTS, 8, "bfloat16")
    assert trace.model_flops == plain.model_flops
    built = build_costs(scenario_of("built", batch={"micro": 5, "microbatches": 2}), num_chunks=1)
    assert built.provenance["frozen parameters"].startswith("16,512, ")
    assert [layer.message_bytes for layer in trace.layers] == [8 * traced_models.WIDTH * 2] * 6


@pytest.mark.parametrize(
    ("factory", "keys", "measured_s"),
    [
        # 2,470 images a second of ResNet-50 v1.5 on one A100 of 80 GB, mixed precision, batches of 256:
        # NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5, pytorch-21.03
        ("resnet:resnet50", {"batch": {"micro": 256, "microbatches": 1}}, 256 / 2470),
        # 0.84 steps a second of DiT-XL/2 on one A100, batches of 128, checkpointing, mixed precision:
        # chuanyangjin/fast-DiT, table of training speeds
        ("dit:dit_xl_2", {"batch": {"micro": 128, "microbatches": 1}, "recompute": "full"}, 1 / 0.84),
    ],
)
def test_published_step_times_lie_within_the_stated_band(factory, keys, measured_s):
    mapping = {
        "model": {"torch": factory},
        "cluster": {"accelerator": "a100-sxm-80", "num_nodes": 1, "gpus_per_node": 1},
        "parallel": {"pipeline": 1},
    }
    scenario = scenario_from_mapping(mapping | keys, file=str(SCENARIOS / "made_up.yaml"))
    assert scenario.efficiency is not None
    step_s = predict(scenario).metrics.step_time_s
    assert abs(step_s / measured_s - 1) < BORROWED_ERROR_BAND
    assert any("was fitted to transformers" in warning for warning in scenario.warnings)


def test_recomputing_keeps_inputs_and_runs_layers_again():
    plain, again = (
        build_costs(scenario_of("cnn", recompute=how, efficiency="a100-megatron"), num_chunks=1)
        for how in ("none", "full")
    )
    assert (plain.forward_s == again.forward_s).all()
    without_launches = plain.forward_s - plain.forward_parts_s["overhead"]
    # The loss on the last stage is not run again.
    assert again.backward_s[0] - plain.backward_s[0] == pytest.approx(without_launches[0])
    assert 0.5 * without_launches[1] < again.backward_s[1] - plain.backward_s[1] < without_launches[1]
    # Two layers: the image, what travels between them, and the stage's output.
    image, between = 8 * 3 * 16 * 16 * 2, 8 * 8 * 16 * 16 * 2
    assert again.activation_bytes[0] == image + 2 * between
    assert (again.activation_bytes < plain.activation_bytes).all()
    peaks = plain.activation_bytes + plain.working_bytes, again.activation_bytes + again.working_bytes
    assert (peaks[1] <= peaks[0]).all()


def test_alike_layers_are_traced_once_and_traces_repeat():
    first = trace_model("dit:dit_xl_2", str(SCENARIOS), 1, "bfloat16")
    assert (len(first.layers), first.num_distinct) == (30, 3)
    assert all(layer is first.layers[1] for layer in first.layers[1:-1])
    resnet = trace_model("resnet:resnet50", str(SCENARIOS), 1, "bfloat16")
    assert (len(resnet.layers), resnet.num_distinct) == (18, 10)
    trace_model.cache_clear()
    assert trace_model("dit:dit_xl_2", str(SCENARIOS), 1, "bfloat16") == first


def test_tracing_leaves_no_memory_and_no_tensors_behind():
    trace_model.cache_clear()
    trace_model("traced_models:linear", TESTS, 8, "bfloat16")
    assert type(traced_models.linear().layers[0]().weight.data) is torch.Tensor
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("model", "keys", "words"),
    [
        ("number", {}, ["model.torch", "returned int", "PipelineModel"]),
        ("breaks", {}, ["model.torch", "breaks failed: RuntimeError: no such weights", "traced_models.py:"]),
        ("nowhere", {}, ["model.torch", "'traced_models:nowhere' cannot be loaded"]),
        ("GPT", {}, ["model.torch", "expected a function"]),
        ("no_layers", {}, ["model.torch", "without layers"]),
        ("misfit", {}, ["layer 1 of traced_models:misfit (Linear) does not take 8x64 bfloat16"]),
        ("pair", {}, ["layer 0", "gave a tuple; one tensor is needed"]),
        ("cut_off", {}, ["layer 1", "no gradient leads back to its input"]),
        ("by_value", {}, ["layer 0", "asks for values of tensors", "traced_models.py:"]),
        ("no_number", {}, ["the loss", "8x128 bfloat16; one number is needed"]),
        ("built", {}, ["batch.micro", "found 8", "hold 5", "microbatch_size"]),
        ("linear", {"pipeline": 7}, ["parallel", "7 stages need at least 7 layers, the model has 6"]),
        ("linear", {"layers": [0, 6]}, ["layers", "stage 0 has no layer"]),
        ("linear", {"layers": [2, 5]}, ["layers", "7 layers together, the model has 6"]),
        ("linear", {"recompute": "selective"}, ["recompute", "none or full"]),
        (
            "linear",
            {"parallel": {"pipeline": 1, "tensor": 2}},
            ["parallel.tensor", "found 2", "not cut into"],
        ),
        ("linear", {"parallel": {"pipeline": 1, "context": 2}}, ["parallel.context", "not cut into"]),
        (
            "linear",
            {"parallel": {"pipeline": 1, "data": 2, "expert": 2}},
            ["parallel.expert", "found 2", "not cut into"],
        ),
        (
            "linear",
            {"parallel": {"pipeline": 2, "sequence_parallel": True}},
            ["parallel.sequence_parallel", "no effect"],
        ),
    ],
)
def test_one_message_says_what_is_wrong(model, keys, words, capfd):
    with pytest.raises(ScenarioError) as caught:
        build_costs(scenario_of(model, **keys), num_chunks=1)
    message = str(caught.value)
    assert message.startswith(f"{TESTS}/made_up.yaml: ")
    for word in words:
        assert word in message
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_without_torch_the_message_names_the_extra(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    with pytest.raises(
        ScenarioError, match=r"model\.torch: needs torch.*pip install '\.\[torch\]' in pipesim's folder"
    ):
        build_costs(scenario_of("linear"), num_chunks=1)


def test_a_module_beside_the_scenario_is_found_and_no_namesake_passes_for_it(tmp_path):
    text = (
        "model: {torch: 'beside_one:f'}\n"
        "cluster: {accelerator: h100-sxm, num_nodes: 1, gpus_per_node: 2}\n"
        "parallel: {pipeline: 2}\nbatch: {micro: 8, microbatches: 4}\n"
    )
    for folder, factory in (("a", "linear"), ("b", "cnn")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "s.yaml").write_text(text)
        module = f"import sys\nsys.path.append({TESTS!r})\nfrom traced_models import {factory} as f\n"
        (tmp_path / folder / "beside_one.py").write_text(module)
    assert build_costs(load_scenario(tmp_path / "a" / "s.yaml"), num_chunks=1).num_stages == 2
    with pytest.raises(ScenarioError, match=r"b/beside_one\.py cannot be imported: .*a/beside_one\.py is"):
        build_costs(load_scenario(tmp_path / "b" / "s.yaml"), num_chunks=1)


def test_replicas_share_out_as_with_transformers():
    cluster = {"accelerator": "a100-sxm-80", "num_nodes": 1, "gpus_per_node": 4}
    tables = {
        level: build_costs(scenario_of("gpt", cluster=cluster, optimizer=level), num_chunks=1)
        for level in ("plain", "sharded", "zero2", "zero3")
    }
    plain = tables["plain"]
    assert plain.gradient_ring is not None
    assert plain.gradient_ring.num_members == 2
    assert {level: table.gradient_collective for level, table in tables.items()} == {
        "plain": "all_reduce",
        "sharded": "reduce_scatter",
        "zero2": "all_gather",
        "zero3": "none",
    }
    np.testing.assert_allclose(tables["sharded"].optimizer_bytes, plain.optimizer_bytes / 2)
    np.testing.assert_allclose(tables["zero3"].weight_bytes, plain.weight_bytes / 2)
    assert (tables["zero3"].forward_s > plain.forward_s).all()


def test_other_ranks_get_their_own_accelerators_times():
    other = {"accelerator": "a100-sxm-80", "num_nodes": 1, "gpus_per_node": 2}
    mixed = build_costs(
        scenario_of("cnn", cluster=other | {"other_accelerators": {"1": "v100-sxm2-32"}}, precision="fp16"),
        num_chunks=1,
    )
    assert list(mixed.of_ranks) == [1]
    assert (mixed.of_ranks[1].forward_s > mixed.forward_s).all()


def test_schedules_that_cut_a_sequence_need_one():
    with pytest.raises(ScheduleError, match="seq1f1b cuts the sequence into slices"):
        predict(scenario_of("cnn"), "seq1f1b", num_chunks=1)
    assert predict(scenario_of("gpt"), "seq1f1b", num_chunks=1).metrics.tokens_per_s is not None


def test_advice_for_memory_is_tried_with_the_model():
    scenario = load_scenario(
        SCENARIOS / "dit-xl-2-a100.yaml", ["batch.micro=128", "batch.global=1024", "optimizer=plain"]
    )
    keys = [change.keys for change in changes_for_memory(predict(scenario))]
    assert {"recompute": "full"} in keys


def test_ranks_run_the_scenario_s_own_model():
    scenario = scenario_of("cnn", layers="balanced", batch={"micro": 2, "microbatches": 4})
    costs = build_costs(scenario, num_chunks=1)
    schedule = lower(schedule_of(scenario))
    workload = workload_from_scenario(scenario, schedule, "cpu")
    assert isinstance(workload, FactoryWorkload)
    assert workload.split.per_stage == (2, 2)
    pool = shared_pool()
    done = execute_scenario(scenario, device="cpu", num_steps=1, warmup=0, pool=pool)
    assert done is not None
    sends = done.run.timeline.op == Op.SEND_F
    # In float32 on a CPU, in bfloat16 as predicted.
    assert set(done.run.timeline.nbytes[sends].tolist()) == {2 * costs.boundary_bytes[0]}
    layers = trace_model("traced_models:cnn", TESTS, 2, "float32").layers[:2]
    # Two microbatches are in flight on the first of two ranks.
    held, _ = stage_bytes(layers, None, recompute=False)
    assert done.run.peak_activation_bytes[:, 0].max() == 2 * held
    again = scenario.with_(seed=1)
    emulated = execute_scenario(again, device="emulated", num_steps=1, warmup=0, pool=pool)
    assert emulated is not None


def test_ranks_cut_a_balanced_model_as_predicted():
    scenario = scenario_of("linear", pipeline=3, layers="balanced")
    workload = workload_from_scenario(scenario, lower(schedule_of(scenario)), "cpu")
    assert isinstance(workload, FactoryWorkload)
    # Even would be 2, 2, 2; but the loss weighs more than a matrix, and the first computes one gradient less.
    assert workload.split.per_stage == (3, 2, 1)
    assert build_costs(scenario, num_chunks=1).provenance["layers per stage"] == "3, 2, 1"


def test_every_verb_takes_such_a_scenario(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "model: {torch: 'traced_models:cnn', name: small CNN}\n"
        "cluster: {accelerator: a100-sxm-80, num_nodes: 1, gpus_per_node: 2}\n"
        "parallel: {pipeline: 2}\nbatch: {global: 16, micro: 2}\n"
    )
    scenario = str(tmp_path / "s.yaml")
    for verb in (
        ["simulate", scenario],
        ["compare", scenario, "--schedules", "gpipe,1f1b,zb-h1"],
        ["plot", "gantt", scenario, "-o", str(tmp_path / "gantt.png")],
        ["plot", "memory", scenario, "-o", str(tmp_path / "memory.png")],
        ["sweep", scenario, "--vary", "batch.micro=1,2,4", "-o", str(tmp_path / "sweep.csv")],
    ):
        outcome = CliRunner().invoke(app, verb)
        assert outcome.exit_code == 0, (verb, outcome.exception)
    assert (tmp_path / "sweep.csv").read_text().count(",small CNN,a100-sxm-80,") == 6
    refused = CliRunner().invoke(app, ["plan", scenario]).exception
    assert isinstance(refused, PipesimError)
    assert "model.torch: a plan tries cuts of a transformer" in str(refused)
