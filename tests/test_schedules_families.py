"""Every family over many shapes: legal, complete, placed and held in memory as its facts say; its options."""

from itertools import product

import numpy as np
import pytest

from pipesim.errors import ScheduleError
from pipesim.ir import peak_in_flight
from pipesim.ir.actions import Op
from pipesim.schedules import Shape, families, family, generate
from pipesim.timing.longest_path import evaluate

FIXED = sorted(name for name, chosen in families().items() if not chosen.needs_costs)
AT_MOST = {"v-half", "v-min", "1f1b-v"}
"""Families whose closed form of the peak is a bound that some rank reaches."""


def options_of(name, p):
    if name == "seq1f1b":
        return [{}, {"num_slices": 1}, {"num_slices": 3}]
    if name == "gis":
        return [{}, {"group_size": -(-p // 2)}]
    return [{}]


def shapes_of(name):
    """Legal shapes with p <= 8, v <= 4 and m <= 26."""
    chosen = family(name)
    chunks = [chosen.chunks] if chosen.chunks else [1, 2, 4]
    for p, v, m in product((1, 2, 3, 4, 5, 8), chunks, (1, 2, 3, 4, 7, 8, 10, 16, 26)):
        for options in options_of(name, p):
            shape = Shape(p, v, m, options)
            try:
                chosen.check(shape)
            except ScheduleError:
                continue
            yield shape


def test_all_are_there():
    names = (
        "gpipe, 1f1b, interleaved-1f1b, looped-bfs, zb-h1, zb-h2, interleaved-zb, zb-v, v-half, v-min, "
        "1f1b-v, dualpipe, dualpipe-v, chimera, hanayo, gis, seq1f1b, pipedream, pipedream-2bw"
    )
    assert set(names.split(", ")) <= set(families())


@pytest.mark.parametrize("name", FIXED)
def test_legal_complete_and_as_its_facts_say(name):
    chosen = family(name)
    num_shapes = 0
    for shape in shapes_of(name):
        schedule = generate(name, shape)  # validates: complete, in order, no deadlock
        num_shapes += 1
        assert (schedule.num_ranks, schedule.num_microbatches) == (shape.num_ranks, shape.num_microbatches)
        assert schedule.num_stages == shape.num_stages
        assert schedule.num_slices == shape.options.get("num_slices", 4 if name == "seq1f1b" else 1)
        assert chosen.splits_backward == bool(np.any(schedule.op == Op.W))
        check_placement(chosen, shape, schedule)
        check_peak(chosen, shape, schedule)
    assert num_shapes >= 5


def check_placement(chosen, shape, schedule):
    p = shape.num_ranks
    homes = [set() for _ in range(shape.num_stages)]
    for stage, rank in zip(schedule.stage.tolist(), schedule.rank.tolist(), strict=True):
        homes[stage].add(rank)
    for stage, home in enumerate(homes):
        lap, place = divmod(stage, p)
        back = p - 1 - place
        expected = {
            "linear": {stage},
            "loop": {place},
            "v": {place if lap == 0 else back},
            "wave": {back if lap % 2 else place},
            "bidirectional": {stage, back} if shape.num_microbatches > 1 else {stage},
        }[chosen.placement]
        assert home == expected
        assert len(home) <= chosen.num_model_replicas


def check_peak(chosen, shape, schedule):
    found = peak_in_flight(schedule).tolist()
    stated = [chosen.peak_in_flight(shape, rank) for rank in range(shape.num_ranks)]
    if chosen.name in AT_MOST:
        assert max(found) <= stated[0]
        assert max(found) == stated[0] or shape.num_microbatches < 2 * shape.num_ranks
    elif stated[0] is not None:
        assert found == stated, shape


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("seq1f1b", Shape(4, 1, 8, {"num_slices": 0}), r"num_slices to be a whole number.*num_slices=0"),
        ("seq1f1b", Shape(4, 1, 8, {"num_slices": 2.5}), "num_slices to be a whole number"),
        ("seq1f1b", Shape(4, 1, 8, {"slices": 2}), r"unknown option 'slices'.*num_slices"),
        ("gis", Shape(5, 2, 8, {"group_size": 2}), r"group_size to be a whole number from p / 2 to p"),
        ("gis", Shape(4, 2, 8, {"group_size": 5}), "from p / 2 to p"),
        ("gis", Shape(4, 2, 8, {"group_size": True}), "from p / 2 to p"),
        ("hanayo", Shape(4, 3, 8), "v even"),
        ("chimera", Shape(3, 1, 8), "p even"),
        ("dualpipe", Shape(4, 1, 9), "m even and m >= 2p.*nearest legal m: 8 or 10"),
        ("dualpipe", Shape(4, 2, 8), "v = 1"),
        ("dualpipe-v", Shape(4, 2, 7), "m >= 2p.*nearest legal m: 8"),
        ("zb-v", Shape(4, 1, 8), "v = 2"),
        ("interleaved-zb", Shape(4, 2, 9), r"m divisible by max\(1, m // p\).*nearest legal m: 8 or 10"),
        ("pipedream-2bw", Shape(4, 1, 3), "m >= p"),
    ],
)
def test_shape_that_a_family_cannot_take_is_named(name, shape, words):
    with pytest.raises(ScheduleError, match=words):
        generate(name, shape)


def test_pairs_of_dualpipe_run_a_forward_of_one_lane_with_a_backward_of_the_other():
    for name, v in (("dualpipe", 1), ("dualpipe-v", 2)):
        schedule = generate(name, Shape(4, v, 12))
        pairs = [a for rank in range(4) for a in schedule.actions_of(rank) if a.parts]
        assert len(pairs) > 4 * 12 / 2
        for pair in pairs:
            assert [part.op for part in pair.parts] == [Op.F, Op.B]
            assert pair.parts[0].stage != pair.parts[1].stage


def test_directions_of_two_replicas_mirror_each_other():
    for name in ("dualpipe", "chimera"):
        schedule = generate(name, Shape(4, 1, 8))

        def seen_from(rank, schedule=schedule):
            return [(a.op, [part.op for part in a.parts]) for a in schedule.actions_of(rank)]

        for rank in range(4):
            assert seen_from(rank) == seen_from(3 - rank)


def test_zb_v_of_a_large_shape_keeps_its_closed_form():
    schedule = generate("zb-v", Shape(16, 2, 64))
    assert len(schedule.op) == 16 * 64 * 2 * 3
    assert evaluate(schedule, [1] * len(schedule.op)).makespan == 64 * 6 + 15
