"""A second implementation of the timing, from a schedule's text on, against the engine and the evaluator.

It shares nothing with the package: it reads torch's cells by itself, knows the pipeline's dependencies by
itself, and steps through the ranks one action at a time, in exact fractions.
"""

import re
from collections import defaultdict
from fractions import Fraction
from random import Random

import pytest
from helpers import costs_of

from pipesim.errors import DeadlockError, ScheduleError
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.schedules import Shape, families, generate
from pipesim.timing.engine import simulate
from pipesim.timing.longest_path import PreparedSchedule

CELL = re.compile(r"(\d+)([FBIW])(\d+)(?:\.(\d+))?")


class Stuck(Exception):  # noqa: N818 - an outcome, not an error
    """No rank can go on."""


def read(text):
    """Units of each rank: the (stage, letter, microbatch, slice) that run together."""
    rows = [[CELL.findall(cell) for cell in line.split(",")] for line in text.splitlines()]
    return [[[(int(s), op, int(k), int(j or 0)) for s, op, k, j in cell] for cell in row] for row in rows]


def inputs_of(action, ranks_of, num_stages, num_slices):
    """What an action reads: the same microbatch on the stage before or after, and its neighbouring slice."""
    stage, op, k, j = action
    if op == "F":
        wanted = [(stage - 1, "F", k, j), (stage, "F", k, j - 1)]
    elif op == "W":
        wanted = [(stage, "I", k, j)]
    else:
        last = stage == num_stages - 1
        after = [(stage, "F", k, j)] if last else [(stage + 1, letter, k, j) for letter in "BI"]
        wanted = [*after, *((stage, letter, k, j + 1) for letter in "BI")]
    return [key for key in wanted if key in ranks_of]


def times_of(text, seconds, transfer_s, *, blocking):
    """Start and end of every action; `seconds` maps a letter to the stages' times."""
    ranks = read(text)
    rank_of = {action: rank for rank, units in enumerate(ranks) for unit in units for action in unit}
    num_stages = 1 + max(action[0] for action in rank_of)
    num_slices = 1 + max(action[3] for action in rank_of)
    inputs = {action: inputs_of(action, rank_of, num_stages, num_slices) for action in rank_of}
    readers = {
        key: action for action, keys in inputs.items() for key in keys if rank_of[key] != rank_of[action]
    }
    # Before each computation of a rank: the messages that it posts together where transfers block.
    programs = []
    for rank, units in enumerate(ranks):
        program, leaving = [], []
        for unit in units:
            needed = [key for action in unit for key in inputs[action] if rank_of[key] != rank]
            program.append(([*leaving, *needed], unit))
            leaving = [action for action in unit if action in readers]
        programs.append(program)
    now, place, times, met = [Fraction(0)] * len(ranks), [0] * len(ranks), {}, defaultdict(dict)
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while place[rank] < len(program):
                messages, unit = program[place[rank]]
                if blocking:
                    for key in messages:
                        met[key][rank] = now[rank]
                    if any(len(met[key]) < 2 for key in messages):
                        break
                    there = [max(met[key].values()) + transfer_s for key in messages]
                else:
                    needed = [key for action in unit for key in inputs[action]]
                    if any(key not in times for key in needed):
                        break
                    there = [times[key][1] + transfer_s * (rank_of[key] != rank) for key in needed]
                start = max([now[rank], *there])
                now[rank] = start + sum(seconds[op][stage] for stage, op, _, _ in unit) / num_slices
                times |= dict.fromkeys(unit, (start, now[rank]))
                place[rank] += 1
                moved = True
            if blocking and place[rank] == len(program):  # what leaves last is posted too
                for action in program[-1][1]:
                    if action in readers and rank not in met[action]:
                        met[action][rank] = now[rank]
                        moved = True
    if len(times) < len(rank_of):
        raise Stuck
    return times


def draw(seed):
    """Draw a schedule of any family, its text, and uneven exact times."""
    random = Random(seed)
    names = sorted(families())
    while True:
        chosen = families()[random.choice(names)]
        num_chunks = chosen.chunks or random.randint(1, 3)
        options = {"budget": 20_000} if chosen.name == "auto" else {}
        shape = Shape(random.randint(1, 5), num_chunks, random.randint(1, 9), options)
        seconds = {
            letter: [Fraction(random.randint(1, 30), random.randint(1, 7)) for _ in range(shape.num_stages)]
            for letter in "FIW"
        }
        seconds["B"] = [
            Fraction(random.randint(1, 60), random.randint(1, 7)) for _ in range(shape.num_stages)
        ]
        transfer_s = random.choice([Fraction(0), Fraction(random.randint(1, 20), random.randint(1, 9))])
        stated = {
            "forward_s": seconds["F"],
            "backward_s": seconds["B"],
            "input_gradient_s": seconds["I"],
            "weight_gradient_s": seconds["W"],
            "p2p_latency_s": transfer_s,
        }
        costs = costs_of(shape.num_ranks, num_chunks, **stated)
        try:
            return generate(chosen.name, shape, costs), costs, seconds, transfer_s
        except ScheduleError:
            continue


def found_by(schedule, start, end):
    """Times of the computations of a product's result by (stage, letter, microbatch, slice)."""
    columns = zip(schedule.stage, schedule.op, schedule.microbatch, schedule.slice, start, end, strict=True)
    return {(int(s), Op(o).name, int(k), int(j)): (a, b) for s, o, k, j, a, b in columns if o <= Op.W}


@pytest.mark.parametrize("start", range(0, 320, 20))
def test_every_start_and_end_is_the_same(start):
    for seed in range(start, start + 20):
        schedule, costs, seconds, transfer_s = draw(seed)
        for mode, receive in (("overlapped", "early"), ("blocking", "late")):
            try:
                expected = times_of(schedule.to_csv(), seconds, transfer_s, blocking=mode == "blocking")
            except Stuck:
                expected = None
            lowered = lower(schedule, receive=receive)
            try:
                timeline = simulate(lowered, costs, p2p=mode)
                found = found_by(lowered, timeline.start_s, timeline.end_s)
            except DeadlockError:
                found = None
            assert found == expected, (seed, schedule.name, mode)
            if mode == "overlapped":
                spans = PreparedSchedule.of(schedule).evaluate_costs(costs)
                compiled = found_by(schedule, spans.start, spans.end)
                assert compiled.keys() == expected.keys()
                for key, times in expected.items():
                    assert compiled[key] == pytest.approx(tuple(map(float, times)), rel=1e-12), (seed, key)
