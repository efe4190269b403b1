"""Frozen weights and low-rank adapters: what has gradients, what is computed, kept and reduced."""

import numpy as np
import pytest
from helpers import FEW_TERMS

from pipesim.costs import build_costs
from pipesim.errors import ScenarioError
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping

LLAMA = {
    "model": {"preset": "llama3-70b", "seq_length": 8192},
    "cluster": {"machine": "dgx-h100", "num_nodes": 4},
    "parallel": {"pipeline": 4, "tensor": 4, "sequence_parallel": True},
    "batch": {"microbatches": 16},
    "optimizer": "sharded",
    "efficiency": FEW_TERMS,
}
HIDDEN, INNER, QKV = 8192, 28672, 8192 + 2 * 1024
ATTENTION, MLP = HIDDEN * QKV + HIDDEN * HIDDEN, 3 * HIDDEN * INNER
TOKENS = 8192


def costs(*overrides, mapping=LLAMA):
    return build_costs(scenario_from_mapping(mapping, overrides=overrides), num_chunks=1)


def lora(rank, modules="[attention, mlp]"):
    return f"trainable.lora_rank={rank}", f"trainable.lora_modules={modules}"


def test_adapters_by_hand():
    """Of four products of a layer r (N + K) parameters each, over 4 tensor devices; 12 bytes shared."""
    adapted, whole = costs(*lora(16)), costs()
    shapes = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * INNER, HIDDEN), (HIDDEN, INNER))
    of_stage = 20 * 16 * sum(outputs + inputs for outputs, inputs in shapes) / 4
    assert adapted.gradient_bytes == pytest.approx(np.full(4, 4 * of_stage))
    assert adapted.optimizer_bytes == pytest.approx(np.full(4, 12 * of_stage / 2))
    assert adapted.weight_bytes == pytest.approx(whole.weight_bytes + 2 * of_stage)
    assert adapted.gradient_sync_s(1) < 0.03 * whole.gradient_sync_s(1)
    for few, all_of_them in zip(adapted.sync_steps(1), whole.sync_steps(1), strict=True):
        assert few.collective.nbytes < 0.05 * all_of_them.collective.nbytes


def test_frozen_weights_have_no_gradient_to_compute():
    """A backward is one product of the forward's size, not two; W is left with the host's time."""
    whole, frozen = costs(), costs("trainable.frozen=[attention, mlp]")
    forward = whole.forward_parts_s["gemm"]
    assert frozen.forward_s == pytest.approx(whole.forward_s)
    assert whole.backward_s - frozen.backward_s == pytest.approx(forward)
    assert whole.weight_gradient_s - frozen.weight_gradient_s == pytest.approx(forward)
    adapted = costs(*lora(16))
    assert (adapted.backward_s < whole.backward_s).all()
    assert (adapted.forward_s > whole.forward_s).all()


def test_flops_are_four_a_frozen_parameter_and_token():
    whole, frozen = costs(), costs("trainable.frozen=[attention, mlp]")
    tokens = 16 * 2 * TOKENS
    spared = whole.model_flops_per_step - frozen.model_flops_per_step
    assert spared == pytest.approx(2 * tokens * 80 * (ATTENTION + MLP))
    adapted = costs(*lora(16))
    shapes = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * INNER, HIDDEN), (HIDDEN, INNER))
    more = 6 * tokens * 80 * 16 * sum(map(sum, shapes))
    head = 2 * tokens * HIDDEN * 128256
    assert whole.model_flops_per_step - adapted.model_flops_per_step == pytest.approx(spared + head - more)


def test_inputs_of_frozen_products_are_not_kept():
    """An MLP's input and that of its second product go; attention's output stays, which its kernel reads."""
    whole = costs().activation_bytes[1] / 20 / (TOKENS / 4)
    no_mlp, no_attention = (
        costs(f"trainable.frozen=[{module}]").activation_bytes[1] / 20 / (TOKENS / 4)
        for module in ("mlp", "attention")
    )
    assert whole - no_mlp == pytest.approx(2 * HIDDEN + 2 * INNER)
    assert whole - no_attention == pytest.approx(2 * HIDDEN)
    assert costs(*lora(16)).activation_bytes[1] == pytest.approx(costs().activation_bytes[1])


def test_shared_out_weights_are_gathered_whole_and_adapters_reduced():
    whole, adapted = (costs("optimizer=zero3", *keys) for keys in ((), lora(16)))
    gathered, reduced = (
        [table.shard_exchange.seconds()[which][1] for table in (whole, adapted)] for which in (0, 1)
    )
    assert gathered[1] == pytest.approx(gathered[0], rel=0.02)
    assert reduced[1] < 0.1 * reduced[0]


def test_a_235b_model_with_adapters_needs_a_fraction():
    """Issue modelscope/ms-swift#6476 has it on 16 devices of 80 GB: too much for them even so."""
    mapping = {
        "model": "qwen3-235b-a22b",
        "cluster": {"machine": "dgx-h100", "num_nodes": 2},
        "parallel": {"pipeline": 4, "expert": 4},
        "batch": {"global": 64},
        "layers": [24, 24, 24, 22],
        "recompute": "full",
        "optimizer": "sharded",
    }
    whole, adapted = (
        predict(scenario_from_mapping(mapping, overrides=keys)) for keys in ((), lora(64, "[attention]"))
    )
    assert adapted.memory < 0.2 * whole.memory
    assert adapted.step_time_s < whole.step_time_s
    first = adapted.metrics.ranks[0].memory_bytes
    assert first.gradients + first.optimizer < 0.02 * first.weights


@pytest.mark.parametrize("schedule", ["zb-h1", "dualpipe", "1f1b"])
def test_every_schedule_runs_with_what_is_left_of_w(schedule):
    asked = scenario_from_mapping(LLAMA | {"schedule": schedule}, overrides=lora(8))
    engine, compiled = predict(asked), predict(asked, timing="compiled")
    assert engine.step_time_s >= compiled.step_time_s * (1 - 1e-9)


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (("trainable.frozen=[norms]",), "trainable.frozen", "attention"),
        (("trainable.frozen=[experts]",), "trainable.frozen", "the model has no experts"),
        (("trainable.frozen=[embedding, attention, mlp, head]",), "trainable.frozen", "nothing to train"),
        (("trainable.lora_modules=[mlp]",), "trainable.lora_modules", "only with lora_rank"),
        (("trainable={lora_rank: 8, frozen: [mlp]}",), "trainable.frozen", "all weights are frozen"),
        (("model.tie_word_embeddings=true", "trainable.frozen=[head]"), "trainable.frozen", "both or none"),
    ],
)
def test_bad_input(overrides, key, words):
    with pytest.raises(ScenarioError, match=words) as caught:
        costs(*overrides)
    assert caught.value.key.startswith(key)
