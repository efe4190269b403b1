"""The engine against the longest path, closed forms, known numbers and a second account of blocking."""

import ast
import hashlib
import subprocess
import sys
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers import (
    costs_of,
    examples,
    longest_path,
    makespan,
    random_costs,
    random_fraction,
    random_schedule,
    schedule_of,
)
from hypothesis import assume, given
from hypothesis import strategies as st

import pipesim
from pipesim.costs.network.alpha_beta import Ring
from pipesim.errors import DeadlockError
from pipesim.ir import lower
from pipesim.ir.actions import RECEIVES, SENDS, Op
from pipesim.schedules import Shape, family, generate
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import StepProgram

RANDOM = st.randoms(use_true_random=False)
TENTH = Fraction(1, 10)


def run(name, num_ranks, num_chunks, num_microbatches, *, p2p="overlapped", **stated):
    schedule = generate(name, Shape(num_ranks, num_chunks, num_microbatches))
    lowered = lower(schedule, receive="late" if p2p == "blocking" else "early")
    return makespan(simulate(lowered, costs_of(num_ranks, num_chunks, **stated), p2p=p2p))


@pytest.mark.parametrize(
    ("name", "shape", "stated", "expected"),
    [
        ("1f1b", (4, 1, 8), {}, 33),
        ("1f1b", (8, 1, 32), {}, 117),
        ("interleaved-1f1b", (4, 2, 8), {}, Fraction("28.5")),
        ("interleaved-1f1b", (8, 2, 32), {}, Fraction("106.5")),
        ("interleaved-1f1b", (4, 4, 8), {}, Fraction("26.25")),
        ("interleaved-1f1b", (8, 4, 32), {}, Fraction("101.25")),
        ("gpipe", (8, 1, 32), {"backward_s": 1}, 78),
        ("1f1b", (8, 1, 32), {"backward_s": 1}, 78),
        ("1f1b", (4, 1, 8), {"p2p_latency_s": TENTH}, Fraction("34.6")),
        ("1f1b", (8, 1, 32), {"p2p_latency_s": TENTH}, Fraction("123.8")),
        ("1f1b", (4, 1, 8), {"p2p_latency_s": TENTH, "p2p": "blocking"}, Fraction("34.9")),
        ("1f1b", (8, 1, 32), {"p2p_latency_s": TENTH, "p2p": "blocking"}, Fraction("124.5")),
    ],
)
def test_known_makespans(name, shape, stated, expected):
    assert run(name, *shape, **stated) == expected


@examples(250)
@given(RANDOM, st.sampled_from(["early", "late"]))
def test_engine_equals_longest_path_on_any_schedule_with_uneven_stages(random, receive):
    schedule = random_schedule(random)
    latency = random.choice([Fraction(0), random_fraction(random)])
    check_against_longest_path(schedule, random_costs(random, schedule, p2p_latency_s=latency), receive)


def check_against_longest_path(schedule, costs, receive="early"):
    timeline, spans = simulate(lower(schedule, receive=receive), costs), longest_path(schedule, costs)
    assert timeline.start_s[timeline.compute].tolist() == spans.start
    assert timeline.end_s[timeline.compute].tolist() == spans.end
    assert makespan(timeline) == spans.makespan
    return makespan(timeline)


@examples(250)
@given(
    name=st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b"]),
    p=st.integers(1, 6),
    v=st.integers(1, 4),
    m=st.integers(1, 16),
    random=RANDOM,
)
def test_engine_equals_longest_path_equals_closed_form(name, p, v, m, random):
    chosen = family(name)
    shape = Shape(p, chosen.chunks or v, m)
    assume(all(rule.holds(shape) for rule in chosen.rules))
    forward, backward = random_fraction(random), random_fraction(random)
    costs = costs_of(p, shape.num_chunks, forward_s=forward, backward_s=backward)
    measured = check_against_longest_path(generate(name, shape), costs)
    bubble = chosen.bubble(shape, forward, backward)
    if bubble is not None:
        assert measured == m * (forward + backward) + bubble
        assert bubble == (p - 1) * (forward + backward) / shape.num_chunks
    else:
        assert measured > m * (forward + backward)


@given(
    p=st.integers(1, 4),
    v=st.integers(1, 3),
    extra=st.integers(0, 6),
    num_groups=st.integers(1, 3),
    rest=st.integers(0, 9),
)
def test_interleaved_with_a_stated_group_keeps_its_closed_form(p, v, extra, num_groups, rest):
    group = p + extra
    assume(rest == 0 or p <= rest < group)
    m = group * num_groups + rest
    schedule = generate("interleaved-1f1b", Shape(p, v, m, {"microbatch_group_size": group}))
    assert check_against_longest_path(schedule, costs_of(p, v)) == 3 * m + Fraction(3 * (p - 1), v)


@given(p=st.integers(1, 6), m=st.integers(1, 12), random=RANDOM)
def test_gpipe_with_uneven_stages(p, m, random):
    schedule = generate("gpipe", Shape(p, 1, m))
    costs = random_costs(random, schedule)
    forward, backward = costs.forward_s.tolist(), costs.backward_s.tolist()
    expected = sum(forward) + sum(backward) + (m - 1) * (max(forward) + max(backward))
    assert check_against_longest_path(schedule, costs) == expected


@given(p=st.integers(1, 6), m=st.integers(1, 12), latency=RANDOM.map(random_fraction))
def test_gpipe_pays_each_hop_once_in_each_direction(p, m, latency):
    assert run("gpipe", p, 1, m, p2p_latency_s=latency) == 3 * (m + p - 1) + 2 * (p - 1) * latency


def test_floats_give_the_longest_path_bit_for_bit():
    schedule = generate("1f1b", Shape(5, 1, 20))
    costs = costs_of(
        5, number=float, forward_s=(0.1, 0.7, 0.3, 1 / 3, 0.2), backward_s=0.9, p2p_latency_s=1e-7
    )
    timeline, spans = simulate(lower(schedule), costs), longest_path(schedule, costs)
    assert timeline.end_s.dtype == np.float64
    assert timeline.end_s[timeline.compute].tolist() == spans.end


@pytest.mark.parametrize("p2p", ["overlapped", "blocking"])
def test_pairs_by_hand(p2p):
    schedule = schedule_of(
        "0F0 0F1 (0F2;0B0)OVERLAP_F_B 0B1 0B2", "1F0 (1F1;1B0)OVERLAP_F_B (1F2;1B1)OVERLAP_F_B 1B2"
    )
    lowered = lower(schedule, receive="late")
    timeline = simulate(lowered, costs_of(2, overlapped_pair_s=Fraction(5, 2)), p2p=p2p)
    assert timeline.start_s[timeline.compute].tolist() == [0, 1, 4.5, 4.5, 9.5, 11.5, 1, 2, 2, 7, 7, 9.5]
    assert timeline.end_s[timeline.compute].tolist() == [1, 2, 7, 7, 11.5, 13.5, 2, 4.5, 4.5, 9.5, 9.5, 11.5]


def test_slices_share_work_and_bytes():
    schedule = schedule_of("0F0 0F0.1 0B0.1 0B0", "1F0 1F0.1 1B0.1 1B0")
    costs = costs_of(2, forward_s=2, backward_s=4, p2p_bytes_per_s=10, boundary_bytes=4, p2p_latency_s=1)
    timeline = simulate(lower(schedule), costs)
    trip = 1 + Fraction(2, 10)
    assert timeline.end_s[timeline.compute].tolist() == [
        *(1, 2, 7 + 2 * trip, 9 + 2 * trip),
        *(1 + trip + 1, 3 + trip, 5 + trip, 7 + trip),
    ]
    assert set(timeline.nbytes[np.isin(timeline.op, SENDS)]) == {2}


def test_rows_of_a_transfer_span_it_from_leaving_to_arriving():
    schedule = schedule_of("0F0 0B0", "1F0 1B0")
    costs = costs_of(2, p2p_latency_s=TENTH, p2p_bytes_per_s=5, boundary_bytes=2)
    frame = simulate(lower(schedule), costs).to_frame()
    spans = {(row.op, row.stage): (row.start_s, row.end_s, row.nbytes) for row in frame.itertuples()}
    assert spans["SEND_F", 0] == spans["RECV_F", 1] == (1, Fraction("1.5"), 2)
    assert spans["SEND_B", 1] == spans["RECV_B", 0] == (Fraction("4.5"), 5, 2)
    assert dict(zip(frame.op, frame.stream, strict=True)) == {
        **dict.fromkeys(["F", "B", "OPTIMIZER"], "compute"),
        **dict.fromkeys(["SEND_F", "RECV_F", "SEND_B", "RECV_B"], "p2p"),
        "REDUCE_GRAD": "collective",
    }


# Contention


def test_transfers_that_meet_on_a_link_slow_each_other_down():
    schedule = schedule_of("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")
    costs = costs_of(2, forward_s=1, backward_s=1, p2p_bytes_per_s=1, boundary_bytes=2)
    timeline = simulate(lower(schedule), costs)
    receives = np.isin(timeline.op, RECEIVES)
    # 0F0 leaves at 1; from 2 on, 0F1 shares the link with its second byte: through at 4, then 0F1 alone to 5
    assert timeline.start_s[receives].tolist()[2:] == [1, 2]
    assert timeline.end_s[receives].tolist()[2:] == [4, 5]


def test_link_has_two_independent_directions():
    costs = costs_of(2, p2p_bytes_per_s=1, boundary_bytes=1)
    one_way = simulate(lower(schedule_of("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")), costs)
    forward = np.isin(one_way.op, [Op.RECV_F])
    backward = np.isin(one_way.op, [Op.RECV_B])
    for rows in (forward, backward):
        assert (one_way.end_s[rows] - one_way.start_s[rows]).tolist() == [1, 1]


@given(RANDOM)
def test_contention_never_makes_an_action_earlier(random):
    schedule = random_schedule(random)
    costs = random_costs(random, schedule, p2p_bytes_per_s=2, boundary_bytes=random_fraction(random))
    spans, timeline = longest_path(schedule, costs), simulate(lower(schedule), costs)
    ends = timeline.end_s[timeline.compute].tolist()
    assert all(end >= alone for end, alone in zip(ends, spans.end, strict=True))
    assert all(isinstance(end, (int, Fraction)) for end in ends)


# Blocking transfers


def blocking_by_hand(lowered, costs, latency):
    """Ends of computations: a transfer starts when both ranks reach it and both stay to its end."""
    orders = [list(lowered.actions_of(rank)) for rank in range(lowered.num_ranks)]
    clock, reached, ended = [Fraction(0)] * len(orders), {}, []
    heads = [0] * len(orders)
    progress = True
    while progress:
        progress = False
        for rank, order in enumerate(orders):
            while heads[rank] < len(order):
                stop = heads[rank]
                while stop < len(order) and order[stop].op in (*SENDS, *RECEIVES):
                    stop += 1
                group = [_message_key(action) for action in order[heads[rank] : stop]]
                for key in group:
                    reached.setdefault(key, {})[rank] = clock[rank]
                if any(len(reached[key]) < 2 for key in group):
                    break
                arrivals = [max(reached[key].values()) + latency for key in group]
                action = order[stop]
                if action.op > Op.W:
                    heads[rank] = len(order)
                    break
                clock[rank] = max([clock[rank], *arrivals]) + costs.duration(action.op, action.stage)
                ended.append(((action.op, action.stage, action.microbatch), clock[rank]))
                heads[rank], progress = stop + 1, True
    assert all(heads[rank] == len(order) for rank, order in enumerate(orders))
    return dict(ended)


def _message_key(action):
    forward = action.op in (Op.SEND_F, Op.RECV_F)
    step = (1 if forward else -1) if action.op in SENDS else 0
    return forward, action.stage + step, action.microbatch


@given(name=st.sampled_from(["gpipe", "1f1b"]), p=st.integers(1, 5), m=st.integers(1, 9), random=RANDOM)
def test_blocking_equals_a_second_account_of_it(name, p, m, random):
    schedule = generate(name, Shape(p, 1, m))
    lowered, latency = lower(schedule, receive="late"), random_fraction(random, most=1)
    costs = random_costs(random, schedule, p2p_latency_s=latency)
    timeline = simulate(lowered, costs, p2p="blocking")
    expected = blocking_by_hand(lowered, costs, latency)
    rows = np.flatnonzero(timeline.compute)
    found = {(Op(timeline.op[r]), timeline.stage[r], timeline.microbatch[r]): timeline.end_s[r] for r in rows}
    assert found == expected
    assert makespan(timeline) >= makespan(simulate(lower(schedule), costs))


def test_blocking_interleaved_deadlocks_and_says_where():
    lowered = lower(generate("interleaved-1f1b", Shape(4, 2, 8)), receive="late")
    with pytest.raises(DeadlockError) as caught:
        simulate(lowered, costs_of(4, 2), p2p="blocking")
    first, *ranks = str(caught.value).splitlines()
    assert first.startswith("the schedule deadlocks under blocking transfers; each rank waits for:")
    # Every rank wants to send the gradient of its upper chunk to a rank that wants to send too.
    assert ranks == [
        "  rank 0: 4SEND_B0 with rank 3, before 0F7",
        "  rank 1: 5SEND_B1 with rank 0, before 1F6",
        "  rank 2: 6SEND_B2 with rank 1, before 2F5",
        "  rank 3: 7SEND_B3 with rank 2, before 3F4",
    ]


# The end of the step


def test_gradients_are_reduced_when_the_last_holder_is_there_and_then_all_ranks_optimize():
    costs = replace(
        costs_of(2, optimizer_s=(3, 5), gradient_sync_s=Fraction(1, 4)),
        gradient_bytes=np.array([Fraction(80), Fraction(40)]),
        gradient_ring=Ring(4, Fraction(10), Fraction(1, 100), Fraction(1, 2)),
    )
    # 1/4 fixed, 1/2 base, 2 * 3 steps of 1/100, and 2 * 3/4 of the bytes at 10 a second
    sync = [Fraction(1, 4) + Fraction(1, 2) + Fraction(6, 100) + Fraction(3, 2) * b / 10 for b in (80, 40)]
    for num_replicas in (1, 3):
        timeline = simulate(lower(schedule_of("0F0 0B0", "1F0 1B0")), costs, num_replicas=num_replicas)
        for replica in range(num_replicas):
            mine = timeline.replica == replica
            reduce, step = mine & (timeline.op == Op.REDUCE_GRAD), mine & (timeline.op == Op.OPTIMIZER)
            assert timeline.start_s[reduce].tolist() == [6, 4]
            assert timeline.end_s[reduce].tolist() == [6 + sync[0], 4 + sync[1]]
            assert timeline.nbytes[reduce].tolist() == [80, 40]
            everything_reduced = max(timeline.end_s[reduce])
            assert timeline.start_s[step].tolist() == [everything_reduced] * 2
            assert timeline.end_s[step].tolist() == [everything_reduced + 3, everything_reduced + 5]


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_tied_embedding_is_reduced_once_both_its_ranks_have_their_gradients(num_replicas):
    ring = Ring(2, Fraction(8), Fraction(1, 100), Fraction(1, 2))
    costs = replace(
        costs_of(3, gradient_sync_s=Fraction(1, 4)),
        tied_embedding_bytes=Fraction(24),
        tied_embedding_ring=ring,
    )
    # 1/2 base, 2 steps of 1/100, and the bytes once at 8 a second
    seconds = Fraction(1, 2) + Fraction(2, 100) + Fraction(24, 8)
    schedule = schedule_of("0F0 0B0", "1F0 1B0", "2F0 2B0")
    timeline = simulate(lower(schedule, tied_embedding=True), costs, num_replicas=num_replicas)
    for replica in range(num_replicas):
        mine = timeline.select(timeline.replica == replica)
        tied = mine.select(mine.op == Op.REDUCE_EMBEDDING)
        reduced = mine.end_s[mine.op == Op.REDUCE_GRAD]
        assert (tied.rank.tolist(), tied.stage.tolist()) == ([0, 2], [0, 2])
        assert tied.start_s.tolist() == [max(reduced[0], reduced[2])] * 2 == [Fraction(37, 4)] * 2
        assert tied.end_s.tolist() == [Fraction(37, 4) + seconds] * 2
        assert mine.start_s[mine.op == Op.OPTIMIZER].tolist() == [tied.end_s[0]] * 3
    compiled = StepProgram.of(schedule, tied_embedding=True).timeline(costs)
    alone = timeline.select(timeline.replica == 0)
    for op in (Op.REDUCE_EMBEDDING, Op.OPTIMIZER):
        rows, expected = compiled.op == op, alone.op == op
        assert compiled.end_s[rows] == pytest.approx(alone.end_s[expected].astype(float), rel=1e-15)


def test_stage_held_twice_is_reduced_when_both_holders_are_there():
    bidirectional = schedule_of("1F1 1B1 0F0 0B0", "0F1 0B1 1F0 1B0")
    timeline = simulate(lower(bidirectional), costs_of(2, gradient_sync_s=2, forward_s=(1, 3)))
    ends = [max(timeline.end_s[timeline.compute & (timeline.rank == rank)]) for rank in (0, 1)]
    assert ends == [15, 13]
    reduce = timeline.op == Op.REDUCE_GRAD
    assert timeline.stage[reduce].tolist() == [1, 0, 1, 0]
    assert timeline.start_s[reduce].tolist() == [max(ends), max(ends) + 2] * 2


def test_replicas_are_alike_and_like_one_alone():
    schedule = lower(generate("1f1b", Shape(3, 1, 5)))
    costs = costs_of(3, forward_s=(1, 2, 1), p2p_latency_s=TENTH, p2p_bytes_per_s=7, boundary_bytes=3)
    one, three = simulate(schedule, costs), simulate(schedule, costs, num_replicas=3)
    assert len(three) == 3 * len(one)
    for replica in range(3):
        alone = three.select(three.replica == replica)
        for column in ("rank", "op", "stage", "microbatch", "start_s", "end_s", "nbytes"):
            assert getattr(alone, column).tolist() == getattr(one, column).tolist()


# Determinism and exactness


def digest(timeline):
    columns = [getattr(timeline, field.name) for field in fields(timeline) if field.name != "source"]
    arrays = [column for column in columns if column is not None]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def simulate_in_floats():
    schedule = generate("interleaved-1f1b", Shape(4, 3, 12))
    costs = costs_of(
        4, 3, number=float, p2p_latency_s=0.01, p2p_bytes_per_s=3e9, boundary_bytes=1e9, backward_s=1.9
    )
    return simulate(lower(schedule), costs, num_replicas=2)


def test_same_arguments_give_the_same_bytes():
    assert digest(simulate_in_floats()) == digest(simulate_in_floats())


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_another_process_gives_the_same_bytes(hash_seed):
    here = Path(__file__).parent
    code = (
        f"import sys; sys.path[:0] = {[str(here), str(Path(pipesim.__file__).parents[1])]!r}\n"
        "from test_engine import digest, simulate_in_floats\n"
        "print(digest(simulate_in_floats()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": hash_seed},
    )
    assert done.stdout.strip() == digest(simulate_in_floats())


@pytest.mark.parametrize("package", ["timing/engine", "ir"])
def test_no_float_is_written_where_fractions_must_stay_exact(package):
    files = sorted((Path(pipesim.__file__).parent / package).glob("**/*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            is_float = isinstance(node, ast.Constant) and isinstance(node.value, float)
            makes_float = isinstance(node, ast.Call) and ast.unparse(node.func) in ("float", "np.float64")
            assert not is_float, f"{file.name}:{node.lineno}"
            assert not makes_float, f"{file.name}:{node.lineno}"
