"""Layers that predict one more token each, on the last stage, with the model's own embedding and head."""

import numpy as np
import pytest

from pipesim.costs import build_costs
from pipesim.costs.transformer.parameters import active_parameters, model_parameters
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping

DEEPSEEK = {
    "model": {"preset": "deepseek-v3", "seq_length": 4096, "expert_imbalance": 1},
    "cluster": {"machine": "dgx-h100", "num_nodes": 16},
    "parallel": {"pipeline": 16, "expert": 8},
    "batch": {"microbatches": 32},
    "optimizer": "sharded",
    "layers": [*[4] * 15, 1],
}
FURTHER = "model.num_nextn_predict_layers=1"
HIDDEN, VOCAB, TOKENS = 7168, 129280, 4096


def scenario(*overrides):
    return scenario_from_mapping(DEEPSEEK, overrides=overrides)


def costs(*overrides):
    return build_costs(scenario(*overrides), num_chunks=1)


def test_deepseek_v3s_prediction_module_has_its_published_parameters():
    """11.5 billion of its own, 2.4 active with embedding and head and, it seems, without the matrix.

    README_WEIGHTS.md of github.com/deepseek-ai/DeepSeek-V3.
    """
    with_it, without = scenario(FURTHER).model, scenario().model
    own = model_parameters(with_it) - model_parameters(without)
    assert own == pytest.approx(11.5e9, rel=0.01)
    active = active_parameters(with_it) - active_parameters(without) + 2 * VOCAB * HIDDEN
    assert active - 2 * HIDDEN**2 == pytest.approx(2.4e9, rel=0.02)


def test_a_layer_a_head_and_a_matrix_more_on_the_last_stage():
    more, usual = costs(FURTHER), costs()
    layer = usual.forward_s[5] / 4
    head = usual.forward_parts_s["head"][-1]
    matrix = 2 * TOKENS * 2 * HIDDEN * HIDDEN / (usual.peak_flops_per_gpu * 0.75)
    added = more.forward_s - usual.forward_s
    assert added[:-1] == pytest.approx(np.zeros(15))
    assert added[-1] == pytest.approx(layer + head + matrix, rel=0.03)
    assert more.token_exchange.num_parts[-1] == usual.token_exchange.num_parts[-1] + 1


def test_it_takes_memory_for_its_layer_its_logits_and_a_copy_of_the_embedding():
    more, usual = costs(FURTHER), costs()
    of_experts, embedding = 3 * HIDDEN * 2048 * 256 / 8, HIDDEN * VOCAB
    weights = (more.weight_bytes - usual.weight_bytes)[-1] / 2
    # What is left is attention, a shared expert, the router and the matrix.
    assert weights - of_experts - embedding == pytest.approx(0.34e9, rel=0.05)
    assert more.logit_bytes[-1] == pytest.approx(2 * usual.logit_bytes[-1])
    layer = usual.activation_bytes[5] / 4
    kept = (more.activation_bytes - usual.activation_bytes - usual.logit_bytes)[-1]
    assert kept == pytest.approx(layer + 6 * 2 * TOKENS * HIDDEN)
    assert more.tied_embedding_bytes == 4 * embedding
    assert more.tied_embedding is not None
    assert usual.tied_embedding is None


def test_flops_count_it():
    more, usual = costs(FURTHER), costs()
    tokens = TOKENS * 32 * 8
    model = scenario(FURTHER).model
    active = active_parameters(model) - active_parameters(scenario().model) + VOCAB * HIDDEN
    attention = 3 * 2 * 32 * 8 * TOKENS**2 * 128 * (192 + 128)
    added = more.model_flops_per_step - usual.model_flops_per_step
    assert added == pytest.approx(6 * tokens * active + attention, rel=1e-4)


@pytest.mark.parametrize("schedule", ["dualpipe-v", "zb-h1", "1f1b"])
def test_balanced_layers_make_room_for_it(schedule):
    more, usual = (
        predict(scenario("layers=balanced", "parallel.pipeline=8", f"schedule={schedule}", *keys))
        for keys in ((FURTHER,), ())
    )
    assert more.step_time_s > usual.step_time_s
    assert more.step_time_s < 1.2 * usual.step_time_s
    compiled = predict(more.scenario, timing="compiled")
    assert compiled.step_time_s <= more.step_time_s * (1 + 1e-9)
