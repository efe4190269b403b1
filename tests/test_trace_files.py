"""What a trace says beside the actions: idle time by cause, memory, the run's numbers."""

import json
from pathlib import Path

import pytest

import pipesim
from pipesim.show.traces import write_trace

ROOT = Path(__file__).parent.parent
TEACHING = ROOT / "scenarios" / "teaching.yaml"
GPT3 = ROOT / "scenarios" / "gpt3-175b-a100.yaml"
CAUSES = {
    "warm-up": "warmup_s",
    "dependency": "dependency_s",
    "exposed p2p": "p2p_s",
    "cool-down": "cooldown_s",
}


def trace_of(run, folder):
    write_trace(run.events, folder / "trace.json", run=run)
    return json.loads((folder / "trace.json").read_text())


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        (TEACHING, {"schedule": "dualpipe", "costs.p2p": "0.1 s"}),
        (TEACHING, {"costs.p2p": "0.1 s", "network.p2p": "blocking"}),
        (GPT3, {"batch.global": 32, "schedule": "zb-v"}),
    ],
)
def test_idle_slices_add_up_to_the_metrics_by_cause(tmp_path, file, changes):
    run = pipesim.Scenario.load(file).with_(changes).predict()
    slices = [event for event in trace_of(run, tmp_path)["traceEvents"] if event.get("cat") == "idle"]
    for rank in run.metrics.ranks:
        for cause, part in CAUSES.items():
            mine = [e["dur"] for e in slices if (e["pid"], e["name"]) == (rank.rank, cause)]
            assert sum(mine) / 1e6 == pytest.approx(getattr(rank.breakdown, part), abs=1e-9)


def test_an_idle_slice_says_what_it_waits_for_and_operations_have_colours(tmp_path):
    """1F1B of four ranks, F 1 and B 2: rank 0 waits from 4 to 10 for the backward of rank 1."""
    run = pipesim.Scenario.load(TEACHING).predict()
    trace = trace_of(run, tmp_path)
    events = trace["traceEvents"]
    (gap,) = (e for e in events if e.get("cat") == "idle" and (e["pid"], e["ts"]) == (0, 4e6))
    assert (gap["name"], gap["dur"]) == ("dependency", 6e6)
    assert gap["args"] == {"next": "0B0", "waits for": "1B0 on rank 1"}
    colours = {e["cat"]: e["cname"] for e in events if "cname" in e}
    assert len(set(colours.values())) == len(colours) == 5  # F, B, idle, and two that take no time here
    assert trace["otherData"]["schedule"] == "1f1b"
    assert trace["otherData"]["step_time_s"] == 33
    assert not any(event["ph"] == "C" for event in events)  # no bytes are stated


def test_the_memory_counter_reaches_the_peak_of_each_rank(tmp_path):
    run = pipesim.Scenario.load(GPT3).with_({"batch.global": 32}).predict()
    counters = [event for event in trace_of(run, tmp_path)["traceEvents"] if event["ph"] == "C"]
    for rank in run.metrics.ranks:
        most = max(event["args"]["GB"] for event in counters if event["pid"] == rank.rank)
        assert most == pytest.approx(rank.peak_memory_bytes / 1e9)
