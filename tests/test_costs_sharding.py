"""What replicas share out: optimizer state, gradients, weights; and what moving them costs."""

from dataclasses import replace

import pytest
from helpers import FEW_TERMS

from pipesim.costs import build_costs
from pipesim.costs.network.alpha_beta import Ring, all_gather_s, reduce_scatter_s
from pipesim.costs.stages.sharding import GatheredBlock, Sharding, StageParameters
from pipesim.ir.actions import Op
from pipesim.scenario import scenario_from_mapping
from pipesim.scenario.resolved import Precision


def costs(optimizer, *, model="llama3-8b", slowdown=0.0, **parallel):
    case = scenario_from_mapping(
        {
            "model": model,
            "cluster": {"accelerator": "h100-sxm", "num_nodes": 2, "inter_node": "ib-ndr"},
            "parallel": {"pipeline": 2} | parallel,
            "batch": {"microbatches": 4},
            "optimizer": optimizer,
            "efficiency": FEW_TERMS | {"overlap_slowdown": slowdown},
        }
    )
    return build_costs(case, num_chunks=1)


def test_levels_share_out_more_and_more():
    plain, sharded, zero2, zero3 = (costs(level) for level in ("plain", "sharded", "zero2", "zero3"))
    for field, level in (("optimizer_bytes", sharded), ("gradient_bytes", zero2), ("weight_bytes", zero3)):
        assert getattr(level, field) == pytest.approx(getattr(plain, field) / 8)
    assert sharded.gradient_bytes == pytest.approx(plain.gradient_bytes)
    assert zero2.weight_bytes == pytest.approx(plain.weight_bytes)
    assert zero3.optimizer_s == pytest.approx(plain.optimizer_s / 8)


def test_experts_are_shared_out_among_their_own_replicas():
    plain, zero3 = (costs(level, model="qwen3-30b-a3b", expert=4) for level in ("plain", "zero3"))
    of_experts = plain.expert_share * plain.weight_bytes
    expected = (plain.weight_bytes - of_experts) / 8 + of_experts / 2
    assert zero3.weight_bytes == pytest.approx(expected)


def test_what_is_left_at_the_end_of_a_step():
    plain, sharded, zero2, zero3 = (costs(level) for level in ("plain", "sharded", "zero2", "zero3"))
    ring = plain.gradient_ring
    weights = all_gather_s(sharded.weight_bytes[0], ring)
    assert sharded.gradient_sync_s(0) == reduce_scatter_s(sharded.gradient_bytes[0], ring) + weights
    assert zero2.gradient_sync_s(0) == weights
    assert zero3.gradient_sync_s(0) == 0
    assert plain.gradient_sync_s(0) > weights


def sharding(level, slowdown=0.0):
    """Two bytes a parameter, of which a ring of two moves one a second; that of experts half of one."""
    near, far = Ring(2, 1.0, 0.0, 0.0), Ring(2, 0.5, 0.0, 0.0)
    return Sharding(level, Precision("bf16", 2, 2, 0), near, far, slowdown)


BLOCKS = [
    GatheredBlock(5, 10, 4, StageParameters(3, 0)),
    GatheredBlock(1, 10, 6, StageParameters(4, 0)),
    GatheredBlock(5, 2, 1, StageParameters(8, 0)),
]


def test_exchange_by_hand():
    """A block of n parameters takes n seconds to gather and n to reduce.

    Forward: 3 to begin with; 4 beside 5; 8 beside 1 shows 7; nothing beside the last. Backward with ZeRO-3: 8
    to begin with; 4 beside the last one's 2 shows 2; 3 and 8 beside 10 show 1; 4 beside 10; 3 to end with.
    With ZeRO-2 nothing is gathered: 8 beside 10, 4 beside 10, 3 to end with.

    Input gradients take 6, 4, 1: 8 to begin with, 4 beside 1 shows 3, 3 beside 4. Weight gradients take 4, 6,
    1: 8 beside 6 shows 2, 4 beside 4, 3 to end with.
    """
    assert sharding("zero3").exposed_s(BLOCKS) == (3 + 0 + 7, 8 + 2 + 1 + 0 + 3, 8 + 3, 2 + 3)
    assert sharding("zero2").exposed_s(BLOCKS) == (0, 3, 0, 2 + 3)
    for level in ("plain", "sharded"):
        assert sharding(level).exposed_s(BLOCKS) == (0, 0, 0, 0)
        assert sharding(level).exchange([BLOCKS]) is None


def test_exchange_in_all():
    """Blocks of 3, 4 and 8 parameters: 15 seconds to gather them, 15 to reduce their gradients."""
    for level, gathered in (("zero3", 15), ("zero2", 0)):
        gathers, reductions = sharding(level).exchange([BLOCKS, BLOCKS[:1]]).seconds()
        assert gathers.tolist() == [gathered, gathered / 5]
        assert reductions.tolist() == [15, 3]


def test_hidden_exchange_slows_the_computing():
    assert sharding("zero2", slowdown=0.25).exposed_s(BLOCKS[:2])[1] == pytest.approx(3 + 4 * 0.25 / 1.25)


def test_experts_move_over_their_own_ring():
    mixed = [GatheredBlock(0, 0, 0, StageParameters(3, 5))]
    assert sharding("zero2").exposed_s(mixed) == (0, 3 + 10, 0, 3 + 10)
    (reductions,) = sharding("zero2").exchange([mixed]).reductions
    assert [(step.of_experts, step.collective.seconds) for step in reductions] == [(False, 3), (True, 10)]


def test_whole_blocks_are_held_while_they_work():
    """Of 3, 4 and 8 parameters the last two are the largest neighbours; a single block has none."""
    for blocks, held in ((BLOCKS, 4 + 8), (BLOCKS[:2], 3 + 4), (BLOCKS[2:], 8)):
        found = [sharding(level).working_bytes(blocks) for level in ("plain", "sharded", "zero2", "zero3")]
        assert found == [0, 0, held * 2, held * 4]


def test_exchange_is_a_part_of_every_stage():
    plain, zero2, zero3 = (costs(level, slowdown=0.15) for level in ("plain", "zero2", "zero3"))
    for table in (zero2, zero3):
        assert sum(table.forward_parts_s.values()) == pytest.approx(table.forward_s)
        assert sum(table.backward_parts_s.values()) == pytest.approx(table.backward_s)
        exposed = table.shard_exchange.exposed_s
        for op, name in ((Op.I, "input_gradient_s"), (Op.W, "weight_gradient_s")):
            assert getattr(table, name) - exposed[op] == pytest.approx(getattr(plain, name))
    assert plain.shard_exchange is None
    assert (zero3.forward_s > plain.forward_s).all()
    assert zero2.forward_s == pytest.approx(plain.forward_s)
    assert (zero3.backward_s > zero2.backward_s).all()
    assert (zero2.backward_s > plain.backward_s).all()
    embedding, layer = 128256 * 4096, 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336 + 2 * 4096
    assert zero3.working_bytes[0] - plain.working_bytes[0] == (embedding + layer) * (2 + 4)


def test_a_stage_without_parameters_reduces_nothing():
    table = costs("sharded")
    empty = replace(table, gradient_bytes=0 * table.gradient_bytes, weight_bytes=0 * table.weight_bytes)
    assert len(table.sync_steps(0)) == 2
    assert empty.sync_steps(0) == []
    assert empty.gradient_sync_s(0) == 0
