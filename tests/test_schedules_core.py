"""GPipe, 1F1B and interleaved 1F1B: orders, constraints, closed forms; and the registry that holds them."""

import pytest
from helpers import texts
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesim.errors import DeadlockError, ScheduleError
from pipesim.ir import peak_in_flight, validate
from pipesim.schedules import Shape, families, family, generate

CORE = ["gpipe", "1f1b", "interleaved-1f1b"]


def legal(name: str, shape: Shape) -> bool:
    return all(rule.holds(shape) for rule in family(name).rules)


def refused_by(name: str, shape: Shape) -> list[str]:
    return [refusal.framework for refusal in family(name).refusals if refusal.refuses(shape)]


def test_gpipe_by_hand():
    assert texts(generate("gpipe", Shape(2, 1, 3))) == [
        "0F0 0F1 0F2 0B0 0B1 0B2",
        "1F0 1F1 1F2 1B0 1B1 1B2",
    ]


def test_1f1b_by_hand():
    assert texts(generate("1f1b", Shape(3, 1, 4))) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]


def test_1f1b_with_fewer_microbatches_than_ranks():
    assert texts(generate("1f1b", Shape(4, 1, 2))) == [
        "0F0 0F1 0B0 0B1",
        "1F0 1F1 1B0 1B1",
        "2F0 2F1 2B0 2B1",
        "3F0 3B0 3F1 3B1",
    ]


def test_interleaved_by_hand():
    assert texts(generate("interleaved-1f1b", Shape(2, 2, 4))) == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_interleaved_takes_megatrons_table_with_a_last_group_that_is_not_whole():
    # The example in the docstring of Megatron-LM's get_schedule_table: p 2, N 3, m 5, v 2.
    shape = Shape(2, 2, 5, {"microbatch_group_size": 3})
    last_rank = generate("interleaved-1f1b", shape).actions_of(1)
    turns = [(action.stage // 2, action.microbatch) for action in last_rank if action.op.name == "F"]
    assert [k for _, k in turns] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [chunk for chunk, _ in turns] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


@given(st.sampled_from(CORE), st.integers(1, 8), st.integers(1, 4), st.integers(1, 24))
def test_every_legal_shape_is_valid_and_complete(name, p, v, m):
    shape = Shape(p, family(name).chunks or v, m)
    assume(legal(name, shape))
    schedule = generate(name, shape)
    validate(schedule)
    assert (schedule.num_ranks, schedule.num_chunks, schedule.num_microbatches) == (p, shape.num_chunks, m)
    assert len(schedule.op) == 2 * m * shape.num_stages
    assert all(schedule.stages_of(rank) == list(range(rank, shape.num_stages, p)) for rank in range(p))


@given(st.sampled_from(CORE), st.integers(1, 8), st.integers(1, 4), st.integers(1, 24))
def test_peak_in_flight_follows_its_closed_form(name, p, v, m):
    shape = Shape(p, family(name).chunks or v, m)
    assume(legal(name, shape))
    v, group = shape.num_chunks, p if m % p == 0 else m // max(1, m // p)
    closed_form = {
        "gpipe": lambda r: m,
        "1f1b": lambda r: min(m, p - r),
        "interleaved-1f1b": lambda r: min(m * v, (v - 1) * group + 2 * (p - 1 - r) + 1),
    }[name]
    peaks = peak_in_flight(generate(name, shape)).tolist()
    assert peaks == [closed_form(r) for r in range(p)]
    assert peaks == [family(name).peak_in_flight(shape, r) for r in range(p)]


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 20), st.integers(1, 24))
def test_interleaved_peak_with_any_group_that_runs(p, v, m, group):
    shape = Shape(p, v, m, {"microbatch_group_size": group})
    try:
        schedule = generate("interleaved-1f1b", shape)
    except DeadlockError:
        # Fewer than p in a group, be it the last: too short a warm-up for what must pass all ranks first.
        assert group < p or 0 < m % group < p
        return
    in_turn = min(group, m)
    assert peak_in_flight(schedule).tolist() == [
        min(m * v, (v - 1) * in_turn + 2 * (p - 1 - r) + 1) for r in range(p)
    ]


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("gpipe", Shape(4, 2, 8), r"gpipe needs v = 1 .*found p=4 v=2 m=8"),
        ("1f1b", Shape(4, 3, 8), r"1f1b needs v = 1 .*found p=4 v=3 m=8"),
        ("1f1b", Shape(0, 1, 8), "at least one rank"),
        ("1f1b", Shape(4, 1, 0), "at least one rank"),
        ("interleaved-1f1b", Shape(4, 0, 8), "at least one rank"),
        (
            "interleaved-1f1b",
            Shape(4, 2, 18),
            r"needs m divisible by p, or by max\(1, m // p\); found p=4 v=2 m=18; nearest legal m: 16 or 20",
        ),
        ("interleaved-1f1b", Shape(8, 2, 33), r"nearest legal m: 32 or 36"),
        ("interleaved-1f1b", Shape(4, 2, 8, {"microbatch_group_size": 0}), "whole number of at least 1"),
        ("interleaved-1f1b", Shape(4, 2, 8, {"microbatch_group_size": True}), "whole number of at least 1"),
        ("interleaved-1f1b", Shape(4, 2, 8, {"microbatch_group_size": 2.5}), "whole number of at least 1"),
        (
            "interleaved-1f1b",
            Shape(4, 2, 8, {"group": 4}),
            "unknown option 'group'; options of this schedule",
        ),
        ("gpipe", Shape(4, 1, 8, {"microbatch_group_size": 4}), "options of this schedule: none"),
    ],
)
def test_shape_that_breaks_a_rule_is_refused(name, shape, words):
    with pytest.raises(ScheduleError, match=words):
        generate(name, shape)


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 2), (5, 2), (4, 3)])
def test_a_group_that_deadlocks_is_told_which_ones_run(p, v):
    def message(m, group):
        try:
            generate("interleaved-1f1b", Shape(p, v, m, {"microbatch_group_size": group}))
        except DeadlockError as error:
            return str(error)
        return ""

    found = {(m, group): message(m, group) for m in range(1, 13) for group in range(1, m + 1)}
    assert any(found.values()) == (p > 2)
    for (m, group), words in filter(lambda item: item[1], found.items()):
        near, _, counts = words.partition("nearest microbatch_group_size: ")[2].partition("; ")
        assert not found[m, int(near)]
        assert bool(counts) == (group >= p)
        for count in counts.rpartition(": ")[2].split(" or ") if counts else ():
            assert not message(int(count), group)


@given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 60))
def test_nearest_legal_m_is_legal_and_nearest(p, v, m):
    shape = Shape(p, v, m)
    assume(not legal("interleaved-1f1b", shape))
    with pytest.raises(ScheduleError) as caught:
        generate("interleaved-1f1b", shape)
    offered = [int(word) for word in str(caught.value).rpartition(": ")[2].split(" or ")]
    assert len(offered) == 2
    for k in range(offered[0], offered[1] + 1):
        assert legal("interleaved-1f1b", Shape(p, v, k)) == (k in offered)


@pytest.mark.parametrize(
    ("name", "shape", "frameworks"),
    [
        ("gpipe", Shape(4, 1, 2), []),
        ("1f1b", Shape(4, 1, 4), []),
        ("1f1b", Shape(4, 1, 3), ["torch"]),
        ("interleaved-1f1b", Shape(4, 2, 8), []),
        ("interleaved-1f1b", Shape(4, 2, 10), ["Megatron"]),
        ("interleaved-1f1b", Shape(4, 2, 10, {"microbatch_group_size": 5}), []),
        ("interleaved-1f1b", Shape(4, 2, 3), ["Megatron"]),
        ("interleaved-1f1b", Shape(4, 2, 18, {"microbatch_group_size": 9}), ["torch"]),
        ("interleaved-1f1b", Shape(4, 2, 18, {"microbatch_group_size": 4}), ["Megatron", "torch"]),
        ("interleaved-1f1b", Shape(4, 2, 16, {"microbatch_group_size": 8}), ["torch"]),
    ],
)
def test_what_a_framework_refuses_runs_and_is_noted(name, shape, frameworks):
    generate(name, shape)
    assert refused_by(name, shape) == frameworks


@pytest.mark.parametrize("written", ["1f1b", "1F1B", " 1f1b "])
def test_case_is_forgiven(written):
    assert family(written).name == "1f1b"


def test_underscores_are_forgiven():
    assert family("Interleaved_1F1B").name == "interleaved-1f1b"


def test_unknown_name_offers_the_nearest():
    with pytest.raises(
        ScheduleError, match=r"no schedule is called 'interleaved-1b1f'; did you mean interleaved"
    ):
        family("interleaved-1b1f")
    with pytest.raises(ScheduleError, match=r"no schedule is called 'xyzzy'; there are: .*1f1b.*gpipe"):
        family("xyzzy")


def test_registry_tells_what_each_schedule_is():
    assert set(CORE) <= set(families())
    for name in CORE:
        assert family(name).summary
        assert family(name).source
        assert family(name).synchronous
    assert [family(name).chunks for name in CORE] == [1, 1, None]
