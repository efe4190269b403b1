"""Balanced layers: the slowest rank as fast as it can be, within memory, against every cut there is."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from helpers import FEW_TERMS, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.costs import build_costs
from pipesim.costs.network.topology import same_devices
from pipesim.costs.stages.balance import Chain, balanced, expected_in_flight
from pipesim.errors import ScenarioError
from pipesim.ir.shape import stage_holders
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping
from pipesim.schedules import Shape, families


def chain(seconds, holders, nbytes=None, limits=None):
    seconds = np.array(seconds, float)
    return Chain(
        seconds=seconds,
        state_bytes=np.zeros(seconds.shape[1]) if nbytes is None else np.array(nbytes, float),
        activation_bytes=np.zeros(seconds.shape[1]),
        in_flight=np.ones(len(holders)),
        limit_bytes=np.full(len(seconds), np.inf) if limits is None else np.array(limits, float),
        holders=holders,
    )


def every_cut(num_pieces, num_stages):
    for cut in combinations(range(1, num_pieces), num_stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *cut, num_pieces)))


def rank_sums(of, counts, amounts):
    sums, begin = np.zeros(len(of.seconds)), 0
    for stage, count in enumerate(counts):
        for rank in of.holders[stage]:
            sums[rank] += amounts(rank)[begin : begin + count].sum() / len(of.holders[stage])
        begin += count
    return sums


def slowest(of, counts):
    return rank_sums(of, counts, lambda rank: of.seconds[rank]).max()


def fits(of, counts):
    return (rank_sums(of, counts, lambda _: of.state_bytes) <= of.limit_bytes).all()


def even_cut(num_pieces, num_stages):
    each, rest = divmod(num_pieces, num_stages)
    return tuple(each + (stage < rest) for stage in range(num_stages))


@settings(deadline=None)
@given(st.data())
def test_one_stage_a_rank_is_the_best_of_all_cuts_that_fit(data):
    num_ranks, num_pieces = data.draw(st.integers(1, 4)), data.draw(st.integers(4, 9))
    pieces = data.draw(st.lists(st.integers(0, 20), min_size=num_pieces, max_size=num_pieces))
    speeds = data.draw(st.lists(st.integers(1, 5), min_size=num_ranks, max_size=num_ranks))
    nbytes = data.draw(st.lists(st.integers(1, 9), min_size=num_pieces, max_size=num_pieces))
    limits = data.draw(st.lists(st.integers(5, 60), min_size=num_ranks, max_size=num_ranks))
    of = chain(np.outer(speeds, pieces), stage_holders("linear", num_ranks, 1), nbytes, limits)
    counts = balanced(of, even_cut(num_pieces, num_ranks))
    assert sum(counts) == num_pieces
    assert min(counts) >= 1
    cuts = list(every_cut(num_pieces, num_ranks))
    allowed = [cut for cut in cuts if fits(of, cut)]
    if allowed:
        assert fits(of, counts)
    best = min((slowest(of, cut), _squares(of, cut)) for cut in allowed or cuts)
    assert (slowest(of, counts), _squares(of, counts)) == pytest.approx(best)


def _squares(of, counts):
    return (rank_sums(of, counts, lambda rank: of.seconds[rank]) ** 2).sum()


@examples(60)
@given(st.data())
def test_several_alike_stages_a_rank_are_the_best_of_all_cuts(data):
    """A head that weighs otherwise, ranks of other speeds; the sum of a rank's stages counts."""
    num_ranks, num_chunks = data.draw(st.sampled_from([(1, 2), (2, 2), (2, 3), (3, 2)]))
    num_pieces = data.draw(st.integers(num_ranks * num_chunks, 11))
    pieces = np.array([*[6.0] * (num_pieces - 1), float(data.draw(st.integers(1, 30)))])
    speeds = data.draw(
        st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.0]), min_size=num_ranks, max_size=num_ranks)
    )
    placement = data.draw(st.sampled_from(["loop", "wave"]))
    of = chain(np.outer(speeds, pieces), stage_holders(placement, num_ranks, num_chunks))
    counts = balanced(of, even_cut(num_pieces, num_ranks * num_chunks))
    best = min(slowest(of, cut) for cut in every_cut(num_pieces, num_ranks * num_chunks))
    assert slowest(of, counts) == pytest.approx(best)


@examples(60)
@given(st.data())
def test_several_stages_a_rank_are_never_slower_than_even(data):
    num_ranks, num_chunks = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 3))
    num_pieces = data.draw(st.integers(num_ranks * num_chunks, 30))
    pieces = data.draw(st.lists(st.floats(0.5, 20), min_size=num_pieces, max_size=num_pieces))
    holders = stage_holders("loop", num_ranks, num_chunks)
    if data.draw(st.booleans()):
        holders = stage_holders("bidirectional", num_ranks, 1)
    of = chain(np.outer(np.ones(num_ranks), pieces), holders)
    even = even_cut(num_pieces, len(holders))
    assert slowest(of, balanced(of, even)) <= slowest(of, even) * (1 + 1e-9)


def test_a_head_of_more_than_half_a_layer():
    """Llama-3.1 405B: 126 layers and a head of 0.63 layers on 16 ranks: smaller last stages."""
    of = chain(np.ones((16, 1)) * [*[1.0] * 125, 1.63], stage_holders("linear", 16, 1))
    assert balanced(of, even_cut(126, 16)) == (8,) * 14 + (7, 7)


@pytest.mark.parametrize(
    ("pieces", "num_ranks"), [([0.001] + [0.1] * 64 + [0.11], 32), ([0.1] * 47 + [0.31], 16)]
)
def test_no_rounding_decides_between_equal_cuts(pieces, num_ranks):
    """Where the one stage with more layers stands is open: the first that may, at any speed."""
    even = even_cut(len(pieces), num_ranks)
    cuts = {
        balanced(chain(np.full((num_ranks, 1), speed) * pieces, stage_holders("linear", num_ranks, 1)), even)
        for speed in np.linspace(0.999, 1.001, 101)
    }
    assert len(cuts) == 1


def test_both_directions_pay_half_of_each_stage():
    """Ranks 0 and 3 hold stages 0 and 3, ranks 1 and 2 the others: 13 in halves of 6 and 7, halved again."""
    of = chain(np.tile([1.0] * 8 + [5.0], (4, 1)), stage_holders("bidirectional", 4, 1))
    assert slowest(of, balanced(of, even_cut(9, 4))) == 3.5


def test_in_flight_is_that_of_1f1b_and_its_interleaved_form():
    assert expected_in_flight(stage_holders("linear", 4, 1), 4, 8).tolist() == [4, 3, 2, 1]
    interleaved = families()["interleaved-1f1b"].peak_in_flight
    expected = [interleaved(Shape(4, 2, 8), rank) / 2 for rank in range(4)] * 2
    assert expected_in_flight(stage_holders("loop", 4, 2), 4, 8).tolist() == expected
    assert expected_in_flight(stage_holders("v", 4, 2), 4, 3).tolist() == [3.0] * 8


MIXED = {
    "model": "llama2-7b",
    "cluster": {
        "accelerator": "h100-sxm",
        "num_nodes": 1,
        "gpus_per_node": 4,
        "intra_node": "pcie5-x16",
        "other_accelerators": {"2": "a100-sxm-80", "3": "a100-sxm-80"},
    },
    "parallel": {"pipeline": 4},
    "batch": {"global": 64, "micro": 1},
    "schedule": "1f1b",
    "efficiency": FEW_TERMS,
}


def mixed(*overrides):
    return scenario_from_mapping(MIXED, overrides=overrides)


def test_slower_devices_get_fewer_layers():
    """Two H100 and two A100: 15.69 s with 8 layers each; [12, 12, 4, 4], the best of those tried, 8.54."""
    even, own, best = (
        predict(mixed(f"layers={layers}")).metrics.step_time_s
        for layers in ("even", "balanced", "[12,12,4,4]")
    )
    assert even == pytest.approx(15.69, abs=0.01)
    assert best == pytest.approx(8.54, abs=0.01)
    assert own <= best * (1 + 1e-9)


def test_small_devices_get_what_they_have_room_for():
    small = "cluster.other_accelerators={'0': {preset: h100-sxm, name: small, memory: 36 GB}}"
    usual = predict(mixed("layers=balanced", "cluster.other_accelerators={}"))
    tight = predict(mixed("layers=balanced", small))
    even = predict(mixed("layers=even", small))
    assert usual.metrics.fits_memory
    assert usual.metrics.ranks[0].peak_memory_bytes > 36e9
    assert not even.metrics.fits_memory
    assert tight.metrics.fits_memory


def test_layers_move_off_a_slow_rank():
    slow = {
        "model": "llama2-7b",
        "cluster": {"machine": "dgx-a100", "num_nodes": 1},
        "parallel": {"pipeline": 8},
        "batch": {"global": 64, "micro": 1},
        "recompute": "full",
        "jitter": {"slow_ranks": {"3": 2.0}},
    }
    even, own = (predict(scenario_from_mapping(slow | {"layers": split})) for split in ("even", "balanced"))
    # 32 layers over ranks of 7.5 in speed; the slow one takes twice as long as all others with four layers.
    # Five on the slowest either way; with one layer on the slow rank, not two, the sum of squares is less.
    assert own.costs.provenance["layers per stage"] == "4, 2 x 5, 1, 5, 3 x 4"
    assert own.metrics.step_time_s < 0.7 * even.metrics.step_time_s


@pytest.mark.parametrize("chunks", [2, 3, 4, 6])
def test_a_rank_pays_the_sum_of_its_chunks(chunks):
    """80 layers over 24 stages: stages of their own would leave a rank with more than the others."""
    mapping = {
        "model": {"preset": "llama3-70b", "seq_length": 4096},
        "cluster": {"machine": "dgx-h100", "num_nodes": 1},
        "parallel": {"pipeline": 4, "tensor": 2, "virtual_stages": chunks, "sequence_parallel": True},
        "batch": {"microbatches": 32},
        "schedule": "interleaved-1f1b",
        "optimizer": "sharded",
        "recompute": "full",
        "efficiency": FEW_TERMS,
    }
    even, own = (
        predict(scenario_from_mapping(mapping | {"layers": split})) for split in ("even", "balanced")
    )
    assert own.metrics.step_time_s <= even.metrics.step_time_s * (1 + 1e-9)
    if chunks == 6:
        assert even.metrics.step_time_s == pytest.approx(16.39, abs=0.01)


def test_rent_is_that_of_the_mean_device_and_peaks_too():
    asked = mixed()
    assert asked.price_usd_per_gpu_hour == pytest.approx((2.95 + 1.29) / 2)
    assert "mean of h100-sxm, a100-sxm-80" in asked.echo["price_per_gpu_hour"]
    metrics = predict(asked).metrics
    assert metrics.usd_per_step == pytest.approx(4 * (2.95 + 1.29) / 2 * metrics.step_time_s / 3600)
    assert build_costs(asked, num_chunks=1).peak_flops_per_gpu == pytest.approx((989e12 + 312e12) / 2)
    assert asked.cluster.device_words(4) == "2 h100-sxm and 2 a100-sxm-80"


def test_another_cut_keeps_the_devices_where_they_are():
    asked = mixed()
    two = scenario_from_mapping(MIXED, overrides=["parallel.pipeline=2", "cluster.other_accelerators={}"])
    names = [one.name for one in same_devices(asked.cluster, asked.parallel, two.parallel).accelerators(2)]
    assert names == ["h100-sxm", "a100-sxm-80"]
    one = scenario_from_mapping(MIXED, overrides=["parallel.pipeline=1", "cluster.other_accelerators={}"])
    with pytest.raises(ScenarioError, match="rank 0 of 1 would have h100-sxm and a100-sxm-80"):
        same_devices(asked.cluster, asked.parallel, one.parallel)


def test_dense_first_layers_are_weighed_as_they_are():
    """Nine layers without experts at the beginning are lighter than the others; a head follows the last."""
    mapping = {
        "model": {"preset": "deepseek-v3", "first_k_dense_replace": 9},
        "cluster": {"machine": "dgx-h100", "num_nodes": 16},
        "parallel": {"pipeline": 4, "expert": 8},
        "batch": {"microbatches": 32},
        "recompute": "full",
        "optimizer": "sharded",
    }
    even, own = (
        predict(scenario_from_mapping(mapping | {"layers": split})).metrics for split in ("even", "balanced")
    )
    assert max(r.busy_s for r in own.ranks) < max(r.busy_s for r in even.ranks)
