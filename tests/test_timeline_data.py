"""What the report's timelines are drawn from says what the metrics say."""

import base64
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

import pipesim
from pipesim.ir.actions import Op
from pipesim.show import timeline_data
from pipesim.show.amounts import SECONDS
from pipesim.show.timeline_data import Columns, packed_timelines

ROOT = Path(__file__).parent.parent
TEACHING = ROOT / "scenarios" / "teaching.yaml"
GPT3 = ROOT / "scenarios" / "gpt3-175b-a100.yaml"


def unpacked(text):
    content = zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS)
    begin = 4 + int.from_bytes(content[:4], "little")
    return json.loads(content[4:begin]), content[begin:]


def numbers(content, column):
    kind, offset, length, form = column
    stored = np.frombuffer(content, f"<{kind}", length, offset).astype(np.int64)
    if isinstance(form, list):
        return np.array(form)[stored]
    return np.cumsum(stored) if form == "d" else stored


def run_of(file, changes):
    return pipesim.Scenario.load(file).with_(changes).predict()


RUNS = {
    "late messages": (GPT3, {"batch.global": 32, "schedule": "1f1b"}),
    "chunks": (GPT3, {"batch.global": 32, "schedule": "zb-v"}),
    "pairs": (TEACHING, {"schedule": "dualpipe"}),
    "slices": (TEACHING, {"schedule": "seq1f1b"}),
    "both ranks wait": (TEACHING, {"costs.p2p": "0.1 s", "network.p2p": "blocking"}),
    "jitter": (TEACHING, {"costs.p2p": "0.1 s", "jitter": {"compute": 0.05}}),
    "shards": (GPT3, {"batch.global": 32, "optimizer": "zero3"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_idle_times_of_the_page_are_those_of_the_metrics(name):
    file, changes = RUNS[name]
    run = run_of(file, changes)
    head, content = unpacked(packed_timelines({0: run}, shown=[0], unit=SECONDS))
    (entry,) = head["runs"]
    gap, p2p, duration, collective = (
        entry["tick"] * numbers(content, entry[column]) for column in ("gap", "p2p", "duration", "collective")
    )
    ends = np.array([0.0])
    for rank, (first, last) in enumerate(zip(entry["offsets"], entry["offsets"][1:], strict=False)):
        b, rest = run.metrics.ranks[rank].breakdown, slice(first + 1, last)
        end = gap[first:last].sum() + duration[first:last].sum()
        found = [duration[first:last].sum() - collective[first:last].sum(), gap[first]]
        found += [(gap - p2p)[rest].sum(), p2p[rest].sum(), collective[first:last].sum()]
        found.append(entry["makespan"] - end)
        wanted = [b.busy_s, b.warmup_s, b.dependency_s, b.p2p_s, b.collective_s, b.cooldown_s]
        assert found == pytest.approx(wanted, abs=1e-7, rel=0)
        ends = np.append(ends, end)
    assert ends.max() == pytest.approx(run.metrics.makespan_s, abs=1e-7)


def test_the_page_has_every_action_its_producer_and_the_memory():
    """DualPipe's pairs are one action each; forwards wait for the stage before theirs."""
    run = run_of(TEACHING, {"schedule": "dualpipe"})
    head, content = unpacked(packed_timelines({3: run}, shown=[3], unit=SECONDS))
    (entry,) = head["runs"]
    op, stage, microbatch, awaited = (
        numbers(content, entry[column]) for column in ("op", "stage", "microbatch", "awaited")
    )
    joined = np.roll(run.schedule.joined, 1)
    assert (op == Op.OVERLAP_F_B).sum() == run.schedule.joined.sum() > 0
    assert stage.tolist() == run.schedule.stage[~joined].tolist()
    assert microbatch.tolist() == run.schedule.microbatch[~joined].tolist()
    at = np.flatnonzero(awaited & (op == Op.F))
    assert (stage[at] - stage[at + awaited[at]])[op[at + awaited[at]] == Op.F].tolist().count(1) > 0
    held = entry["memory"]["scale"] * numbers(content, entry["memory"]["during"])
    assert held.max() == pytest.approx(5)  # p + 1 microbatches, DualPipe's own figure


def test_the_fullest_rank_is_as_full_as_the_metrics_say():
    run = run_of(GPT3, {"batch.global": 32})
    head, content = unpacked(packed_timelines({0: run}, shown=[0], unit=SECONDS))
    memory = head["runs"][0]["memory"]
    most = memory["scale"] * numbers(content, memory["during"]).max()
    assert most == pytest.approx(run.metrics.peak_memory_bytes, rel=1e-6)
    assert memory["limits"] == [run.costs.memory_limit_bytes]


def test_columns_take_few_bytes_and_hold_any_number():
    columns = Columns()
    for values in ([], [0, 255], [-1, 1], [70_000, 70_001] * 99, list(range(300)), [2**40, -3], [-(2**31)]):
        described = columns.add(np.array(values, np.int64))
        assert numbers(bytes(columns.content), described).tolist() == values
    assert len(columns.add(np.array([70_000, 70_001]))[3]) == 2
    described = columns.add(np.array([5, 4, 9]), differences=True)
    assert numbers(bytes(columns.content), described).tolist() == [5, 4, 9]


def test_beyond_what_a_browser_draws_the_last_schedules_have_no_timeline(monkeypatch):
    monkeypatch.setattr(timeline_data, "MOST_ACTIONS", 100)
    run = run_of(TEACHING, {})  # 64 computations
    head, _ = unpacked(packed_timelines({0: run, 1: run, 2: run}, shown=[2], unit=SECONDS))
    assert [entry["row"] for entry in head["runs"]] == [2]
