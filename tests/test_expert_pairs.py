"""A forward and a backward that run together: each computes beside the other's exchange of tokens."""

import numpy as np
import pytest
from helpers import FEW_TERMS

from pipesim.costs import build_costs
from pipesim.costs.token_exchange import TokenExchange
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.ir.actions import Op
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping
from pipesim.schedules import Shape, generate

DEEPSEEK = {
    "model": {"preset": "deepseek-v3", "seq_length": 4096},
    "cluster": {"machine": "dgx-h100", "num_nodes": 16},
    "parallel": {"pipeline": 8, "expert": 16, "expert_dispatch": "deepep", "expert_overlap": 0},
    "batch": {"microbatches": 16},
    "schedule": "dualpipe",
    "optimizer": "sharded",
    "network": {"mode": "ideal"},
    "efficiency": FEW_TERMS,
}


def scenario(*overrides):
    return scenario_from_mapping(DEEPSEEK, overrides=overrides)


@pytest.mark.parametrize(
    ("moving", "together"),
    [
        # Computing 6 + 12; 12 of tokens slow it down by a fifth of that.
        (12.0, 18 + 12 * 0.25 / 1.25),
        # 25 of tokens last longer than 18 + 5.
        (25.0, 25.0),
        # Never longer than one after the other.
        (40.0, 30.0),
    ],
)
def test_a_pair_by_hand(moving, together):
    third = np.array([moving / 3])
    exchange = TokenExchange(
        nbytes={},
        latency_s={},
        alone_s={Op.F: third, Op.B: 2 * third},
        shown_s={Op.F: np.array([4.0]), Op.B: np.array([8.0])},
        num_parts=(1,),
        bytes_per_s=1.0,
        num_members=2,
        inside_share=1.0,
    )
    stage = np.zeros(1, int)
    found = exchange.paired_s(np.array([10.0]), np.array([20.0]), (stage, stage), 0.25)
    assert found == pytest.approx([together])


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe-v"])
def test_pairs_of_a_model_hide_tokens(schedule):
    asked = scenario(f"schedule={schedule}")
    engine, compiled = predict(asked), predict(asked, timing="compiled")
    assert engine.step_time_s == pytest.approx(compiled.step_time_s, rel=1e-9)
    costs, rows = engine.costs, engine.schedule
    first = np.flatnonzero(rows.joined)[3]
    f, b = rows.stage[first], rows.stage[first + 1]
    spent = engine.events.select(engine.events.compute)
    lasted = (spent.end_s - spent.start_s)[first]
    tokens, slowdown = costs.token_exchange, 0.15 / 1.15
    moving = tokens.alone_s[Op.F][f] + tokens.alone_s[Op.B][b]
    computing = sum(
        seconds.sum()
        for parts, stage in ((costs.forward_parts_s, f), (costs.backward_parts_s, b))
        for seconds in (np.array([part[stage] for name, part in parts.items() if name != "expert_exchange"]),)
    )
    assert lasted == pytest.approx(max(moving, computing + moving * slowdown))
    assert lasted == pytest.approx(costs.pair_s(f, b))
    assert lasted < 0.95 * (costs.forward_s[f] + costs.backward_s[b])


def test_without_experts_a_pair_takes_both():
    costs = build_costs(
        scenario_from_mapping(
            DEEPSEEK | {"model": "llama3-70b", "parallel": {"pipeline": 8}, "batch": {"microbatches": 16}}
        ),
        num_chunks=1,
    )
    assert costs.token_exchange is None
    assert costs.pair_s(1, 2) == costs.forward_s[1] + costs.backward_s[2]


def test_a_stated_pair_stands_beside_a_model():
    modelled, stated = predict(scenario()), predict(scenario("costs.overlapped_pair=1.5 s"))
    first = np.flatnonzero(stated.schedule.joined)[0]
    spent = stated.events.select(stated.events.compute)
    assert (spent.end_s - spent.start_s)[first] == pytest.approx(1.5)
    assert stated.step_time_s > modelled.step_time_s
    assert stated.scenario.with_(seed=1).overlapped_pair_s == 1.5
    with pytest.raises(ScenarioError, match="beside a model, costs may state overlapped_pair alone"):
        scenario("costs.overlapped_pair=1.5 s", "costs.forward=1 s")


def test_interleaved_pairs_as_megatron_core_overlaps_them():
    """One more forward in the warm-up; then every forward runs with a backward."""
    plain, pairs = (
        generate("interleaved-1f1b", Shape(4, 2, 8, {"pairs": choice})) for choice in (False, True)
    )
    assert not plain.joined.any()
    for rank in range(4):
        warmup = [str(action) for action in pairs.actions_of(rank)[: 4 + 2 * (3 - rank) + 1]]
        assert warmup == [str(action) for action in pairs.actions_of(rank) if not action.parts][: len(warmup)]
    assert pairs.joined.sum() == sum(16 - min(16, 4 + 2 * (3 - rank) + 1) for rank in range(4))
    with pytest.raises(ScheduleError, match="pairs to be true or false"):
        generate("interleaved-1f1b", Shape(4, 2, 8, {"pairs": 3}))


def test_interleaved_pairs_pay_where_tokens_show():
    cut = "parallel.virtual_stages=4"
    apart, together = (
        predict(scenario(cut, f"schedule={{name: interleaved-1f1b, pairs: {choice}}}"))
        for choice in ("false", "true")
    )
    assert together.step_time_s < 0.98 * apart.step_time_s
    assert together.metrics.peak_memory_bytes > apart.metrics.peak_memory_bytes
    compiled = predict(together.scenario, timing="compiled")
    assert compiled.step_time_s == pytest.approx(together.step_time_s, rel=1e-9)
