"""Calibration from files of somebody's real run: timers of Megatron-LM, traces of the PyTorch profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipesim.cli.calibrate_runs import calibrate_runs
from pipesim.errors import PipesimError, ScenarioError
from pipesim.evidence.calibration.fit import calibrate
from pipesim.evidence.calibration.kineto import action_of
from pipesim.evidence.calibration.sources import calibrate_measured, read_measured, read_samples
from pipesim.evidence.calibration.traced_check import check_traced
from pipesim.ir.actions import Op
from pipesim.schedules import Shape, generate

FORWARD_US, BACKWARD_US, LATENCY_US = 1000.0, 2000.0, 50.0
AHEAD_US = 700_000.0
"""What the clock of rank 1 is ahead."""


def write_dumps(
    folder: Path, num_ranks: int, num_chunks: int, num_microbatches: int = 4, skip: tuple[int, ...] = ()
) -> None:
    """Timers as the patched Megatron-LM writes them; stage s takes 10 + s ms forward and twice that back."""
    for rank in set(range(num_ranks)) - set(skip):
        timers: dict[str, float] = {}
        now = 1000.0 * rank
        for chunk in range(num_chunks):
            for kind, factor in (("forward", 1), ("backward", 2)):
                for microbatch in range(num_microbatches):
                    name = f"{kind}-{microbatch}" if num_chunks == 1 else f"{kind}-{chunk}-{microbatch}"
                    timers[f"{name}-start"] = now
                    now += factor * (10 + chunk * num_ranks + rank)
                    timers[f"{name}-end"] = now
        name = f"event_times_PP{num_ranks}_VPP{num_chunks}_TPxCPxDP_rank_0_pp_rank_{rank}_rank_{rank}.json"
        (folder / name).write_text(json.dumps(timers))


@pytest.mark.parametrize(("num_ranks", "num_chunks"), [(4, 1), (2, 2)])
def test_timer_dumps(tmp_path: Path, num_ranks: int, num_chunks: int) -> None:
    write_dumps(tmp_path, num_ranks, num_chunks)
    (samples,) = read_samples([tmp_path])
    assert samples.stages_of_rank == tuple(
        tuple(range(rank, num_ranks * num_chunks, num_ranks)) for rank in range(num_ranks)
    )
    found = calibrate([samples])
    np.testing.assert_allclose(found.costs.forward_s, 1e-3 * (10 + np.arange(4)))
    np.testing.assert_allclose(found.costs.backward_s, 2e-3 * (10 + np.arange(4)))
    assert any("clocks of processes are not related" in note for note in found.notes)


def test_timer_dumps_that_do_not_add_up(tmp_path: Path) -> None:
    write_dumps(tmp_path, 4, 1, skip=(1, 3))
    with pytest.raises(ScenarioError, match="pipeline ranks 1, 3 of 4 have no file"):
        read_samples([tmp_path])
    write_dumps(tmp_path, 4, 1)
    path = next(tmp_path.glob("*_pp_rank_2_*.json"))
    timers = json.loads(path.read_text())
    del timers["forward-0-end"]
    path.write_text(json.dumps(timers))
    (samples,) = read_samples([tmp_path])
    assert any("1 timers without both start and end" in words for words in samples.unused)
    path.write_text(json.dumps({"forward-0-start": "now"}))
    with pytest.raises(ScenarioError, match="forward-0-start: found 'now'; expected milliseconds"):
        read_samples([tmp_path])
    path.write_text(json.dumps({"forward-1-0-start": 1.0}))
    with pytest.raises(ScenarioError, match="does not go with the file name's VPP 1"):
        read_samples([tmp_path])
    path.write_text("[]")
    with pytest.raises(ScenarioError, match="is not a mapping of timers"):
        read_samples([tmp_path])


class GpuTrace:
    """A profiler trace of one rank, event by event; annotations come long before their kernels run."""

    def __init__(self, rank: int, ahead_us: float = 0.0, *, arrows: bool = False) -> None:
        self.rank = rank
        self.ahead_us = ahead_us
        self.arrows = arrows
        self.events: list[dict[str, Any]] = []
        self._host_us = 0.0
        self._count = 0

    def action(self, name: str, *kernels: tuple[str, float, float], graph: bool = False) -> None:
        """One annotation that launches kernels, each of a name, start and end."""
        begin = self._host_us
        for kernel, start, end in kernels:
            self._count += 1
            self._host_us += 5
            launch = {"pid": 1, "tid": 1, "ts": self._host_us + self.ahead_us}
            place = {"pid": 0, "tid": 7, "ts": start + self.ahead_us}
            arguments: dict[str, Any] = {"stream": 7}
            if self.arrows:
                self.events += [
                    {"ph": "s", "cat": "ac2g", "id": self._count, "name": "ac2g", **launch},
                    {"ph": "f", "cat": "ac2g", "id": self._count, "name": "ac2g", "bp": "e", **place},
                ]
            else:
                arguments["correlation"] = self._count
            if graph:
                arguments["graph node id"] = 3
            if "SendRecv" in kernel:
                arguments |= {"In msg nelems": 250_000, "dtype": "Float"}
            self.events += [
                {
                    "ph": "X",
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "dur": 2,
                    "args": {"correlation": self._count},
                    **launch,
                },
                {"ph": "X", "cat": "kernel", "name": kernel, "dur": end - start, "args": arguments, **place},
            ]
        self._host_us += 10
        self.events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": name,
                "pid": 1,
                "tid": 1,
                "ts": begin + self.ahead_us,
                "dur": self._host_us - begin - 1,
            }
        )

    def write(self, path: Path) -> None:
        document = {
            "deviceProperties": [{"id": 0, "name": "GPU"}],
            "distributedInfo": {"rank": self.rank, "world_size": 2},
            "traceEvents": self.events,
        }
        text = json.dumps(document)
        if path.suffix == ".gz":
            with gzip.open(path, "wt") as file:
                file.write(text)
        else:
            path.write_text(text)


def two_ranks(folder: Path, *, arrows: bool = False, messages: bool = True, num: int = 3) -> None:
    """Microbatches one by one through two stages, of which the second's clock is ahead."""
    lower, upper = GpuTrace(0, arrows=arrows), GpuTrace(1, AHEAD_US, arrows=arrows)
    now = 1e5
    for m in range(num):
        forward_end = now + FORWARD_US
        arrived = forward_end + LATENCY_US
        lower.action(f"PP:0F{m}", ("gemm", now, now + 400), ("gemm", now + 600, forward_end))
        upper_end = arrived + FORWARD_US
        backward_end = upper_end + BACKWARD_US
        back = backward_end + LATENCY_US
        if messages:
            lower.action(f"PP:0SEND_F{m}", ("ncclDevKernel_SendRecv(x)", forward_end, arrived))
            upper.action(f"PP:1RECV_F{m}", ("ncclDevKernel_SendRecv(x)", now, arrived))
            lower.action(f"PP:0RECV_B{m}", ("ncclDevKernel_SendRecv(x)", arrived, back))
        upper.action(f"PP:1F{m}", ("gemm", arrived, upper_end))
        upper.action(f"PP:1B{m}", ("gemm", upper_end, backward_end))
        if messages:
            upper.action(f"PP:1SEND_B{m}", ("ncclDevKernel_SendRecv(x)", backward_end, back))
        lower.action(f"PP:0B{m}", ("gemm", back, back + BACKWARD_US))
        now = back + BACKWARD_US
    lower.write(folder / "rank0.json.gz")
    upper.write(folder / "rank1.json")


@pytest.mark.parametrize("arrows", [False, True])
def test_times_are_those_of_kernels_and_clocks_are_tied_by_messages(tmp_path: Path, arrows: bool) -> None:
    two_ranks(tmp_path, arrows=arrows)
    found = calibrate(read_samples([tmp_path]))
    np.testing.assert_allclose(found.costs.forward_s, 1e-6 * FORWARD_US)
    np.testing.assert_allclose(found.costs.backward_s, 1e-6 * BACKWARD_US)
    link = found.costs.p2p(0, 1)
    assert link.latency_s == pytest.approx(1e-6 * LATENCY_US)
    assert found.costs.boundary_bytes.tolist() == [1e6, 0]
    clocks = [note for note in found.notes if "us apart" in note]
    assert len(clocks) == 1
    assert "clocks 700000 us apart, known to 50 us" in clocks[0]


def test_without_annotated_messages_clocks_are_tied_by_what_gives_and_takes(tmp_path: Path) -> None:
    two_ranks(tmp_path, messages=False)
    found = calibrate(read_samples([tmp_path]))
    np.testing.assert_allclose(found.costs.forward_s, 1e-6 * FORWARD_US)
    assert found.costs.p2p(0, 1).latency_s == pytest.approx(1e-6 * LATENCY_US)
    assert any("sizes of messages are not in the traces" in note for note in found.notes)


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    (samples,) = read_samples([tmp_path / "rank1.json"])
    assert "traces of 1 of 2 processes were given" in samples.unused
    with pytest.raises(PipesimError, match="F of stages 0 was never measured"):
        calibrate([samples])


def test_what_a_trace_cannot_tell(tmp_path: Path) -> None:
    trace = GpuTrace(0)
    trace.action("PP:0F0", ("gemm", 100, 200))
    trace.action("PP:0F1")
    trace.action("PP:0B0", ("gemm", 300, 500))
    trace.action("whole step", ("gemm", 600, 700), graph=True)
    lost = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 800, "dur": 5, "args": {}}
    trace.events.append(lost)
    trace.write(tmp_path / "a.json")
    (samples,) = read_samples([tmp_path / "a.json"])
    assert set(samples.op_s) == {(Op.F, 0), (Op.B, 0)}
    words = " ".join(samples.unused)
    assert "1 actions without work of their own: an annotation is time of the CPU" in words
    assert "1 kernels of CUDA graphs" in words
    assert "1 of 4 kernels without a launch in the trace" in words


def test_host_side_of_a_gpu_run_is_refused(tmp_path: Path) -> None:
    trace = GpuTrace(0)
    trace.action("PP:0F0", ("gemm", 100, 200))
    trace.events = [event for event in trace.events if event["cat"] != "kernel"]
    trace.write(tmp_path / "a.json")
    with pytest.raises(ScenarioError, match="shows only the host of a GPU"):
        read_samples([tmp_path / "a.json"])


def test_a_trace_without_pipeline_actions_is_refused(tmp_path: Path) -> None:
    trace = GpuTrace(0)
    trace.action("1F1B", ("gemm", 100, 200))
    trace.action("dispatch(F)", ("gemm", 200, 300))
    trace.write(tmp_path / "train.json")
    with pytest.raises(ScenarioError, match=r"no annotation names a pipeline action.*1F1B, dispatch\(F\)"):
        read_samples([tmp_path / "train.json"])
    (tmp_path / "cut.json.gz").write_bytes(b"no gzip")
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_samples([tmp_path / "cut.json.gz"])


@pytest.mark.parametrize("time", [float("inf"), float("nan"), 10**400, "soon", None])
def test_a_time_that_is_no_number_is_refused(tmp_path: Path, time: object) -> None:
    trace = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "mm", "ts": time, "dur": 1}]}
    (tmp_path / "odd.json").write_text(json.dumps(trace))
    with pytest.raises(ScenarioError, match=r"event 0 has 'ts'.*expected microseconds"):
        read_samples([tmp_path / "odd.json"])


def test_two_traces_of_one_stage_are_refused(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    copy = json.loads((tmp_path / "rank1.json").read_text())
    copy["distributedInfo"]["rank"] = 2
    (tmp_path / "copy.json").write_text(json.dumps(copy))
    with pytest.raises(ScenarioError, match="give the traces of one pipeline only"):
        read_samples([tmp_path])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PP:1F0", (Op.F, 1, 0)),
        ("PP:3SEND_B12", (Op.SEND_B, 3, 12)),
        ("Forward 3", (Op.F, -1, 3)),
        ("Backward 0", (Op.B, -1, 0)),
        ("ProfilerStep#1", None),
        ("PP:(0F1;1B0)OVERLAP_F_B", (Op.OVERLAP_F_B, 0, 1)),
        ("PP:nonsense", None),
    ],
)
def test_names_of_annotations(name: str, expected: tuple[Op, int, int] | None) -> None:
    action = action_of(name)
    assert (None if action is None else (action.op, action.stage, action.microbatch)) == expected


def test_a_real_trace_of_a_cpu(tmp_path: Path) -> None:
    """Waits inside an annotation are not its work; stages come from ranks where names have none."""
    torch = pytest.importorskip("torch")
    import time

    from torch.profiler import ProfilerActivity, profile, record_function

    x = torch.randn(300, 300)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for microbatch in range(3):
            with record_function(f"PP:0F{microbatch}"):
                time.sleep(0.05)
                x @ x
            with record_function(f"PP:0B{microbatch}"):
                x @ x
                x @ x
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    (samples,) = read_samples([tmp_path / "trace.json"])
    assert len(samples.op_s[Op.F, 0]) == len(samples.op_s[Op.B, 0]) == 3
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans_us = {event["name"]: event["dur"] for event in events if event.get("name", "").startswith("PP:0F")}
    whole_s = np.array([1e-6 * spans_us[f"PP:0F{microbatch}"] for microbatch in range(3)])
    assert (samples.op_s[Op.F, 0] <= whole_s - 0.05).all()


def timer_log(num_chunks: int = 1, option: str = "all") -> str:
    """Two steps on two pipeline ranks of two data-parallel processes each, as Megatron-LM prints them."""
    sizes = {
        "pipeline_model_parallel_size": 2,
        "data_parallel_size": 2,
        "global_batch_size": 16,
        "micro_batch_size": 2,
        "virtual_pipeline_model_parallel_size": num_chunks if num_chunks > 1 else None,
    }
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sizes.items()]
    for slow in (5.0, 1.0):
        lines.append(" iteration  1/ 2 | elapsed time per iteration (ms): 744.0 | global batch size:    16 |")
        if option == "minmax":
            lines += [
                "(min, max) time across ranks (ms):",
                f"    {'forward-compute '.ljust(48, '.')}: (40.00, 60.00)",
            ]
            continue
        lines.append("times across ranks (ms):")
        for name, times in (
            ("forward-compute", (40, 60)),
            ("backward-compute", (80, 120)),
            ("optimizer", (7, 7)),
        ):
            lines.append(f"  {name}:")
            lines += [f"     rank {rank:2d}: {slow * times[rank // 2]:.2f}" for rank in range(4)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_timers_as_megatron_prints_them(tmp_path: Path, num_chunks: int) -> None:
    """16 / (2 x 2) = 4 microbatches: F of 40 ms on rank 0 is 10 ms each; the first step does not count."""
    path = tmp_path / "train.log"
    path.write_text(timer_log(num_chunks))
    found = calibrate(read_samples([path]))
    np.testing.assert_allclose(found.costs.forward_s, 1e-3 * np.tile([10, 15], num_chunks) / num_chunks)
    np.testing.assert_allclose(found.costs.backward_s, 1e-3 * np.tile([20, 30], num_chunks) / num_chunks)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda log: timer_log(option="minmax"), "run with --timing-log-level 2 --timing-log-option all"),
        (lambda log: log[log.index(" iteration") :], "does not show pipeline_model_parallel_size, data_par"),
        (lambda log: log.replace(". 16\n", ". 6\n"), "no whole number of microbatches follows"),
    ],
)
def test_a_log_that_does_not_tell_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(change(timer_log()))
    with pytest.raises(ScenarioError, match=words):
        read_samples([path])


TORCH = Path(__file__).parent / "data" / "torch_traces"
"""Of torch 2.13's profiler on a busy machine; see benchmarks/record_torch_traces.py."""
STATED_S = 0.02 * np.array([1, 4 / 3, 5 / 3, 2])


@pytest.mark.parametrize("whole", ["gpipe", "interleaved-1f1b"])
@pytest.mark.parametrize("split", ["zb-v", "zb-h1"])
def test_traces_of_torchs_schedules_predict_the_others(whole: str, split: str) -> None:
    """Two runs of one job read together hold F, B, I, W and the delay of messages; zb-h1 is a CSV run."""
    found = calibrate_measured(TORCH / whole, TORCH / split)
    np.testing.assert_allclose(found.costs.forward_s, STATED_S, rtol=0.04)
    np.testing.assert_allclose(found.costs.backward_s, 2 * STATED_S, rtol=0.04)
    # Torch's first stage does nothing in I and all of it in W.
    np.testing.assert_allclose(found.costs.input_gradient_s[1:], 1.1 * STATED_S[1:], rtol=0.04)
    assert found.costs.input_gradient_s[0] == 0
    assert found.costs.weight_gradient_s[0] == pytest.approx(2.1 * STATED_S[0], rel=0.04)
    assert 0.0002 < found.costs.p2p(0, 1).latency_s < 0.003
    assert found.costs.boundary_bytes.tolist() == [256 * 1024] * 3 + [0]
    _, traced = read_measured([TORCH / name for name in ("gpipe", "interleaved-1f1b", "zb-v", "zb-h1")])
    assert len(traced) == 4
    for run in traced:
        check = check_traced(run, found.costs)
        assert abs(check.error) < 0.03
        for times, makespan_s in ((check.measured, check.measured_s), (check.predicted, check.predicted_s)):
            assert sum(times.values()) == pytest.approx(makespan_s, rel=1e-3)


def test_the_order_that_ran_is_found_in_the_traces() -> None:
    _, (run,) = read_measured([TORCH / "zb-v"])
    expected = generate("zb-v", Shape(2, 2, 6))
    found = run.schedule.schedule
    for name in ("offsets", "op", "stage", "microbatch"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    assert run.num_steps == 4
    assert (run.end_s >= run.start_s).all()


def test_calibrate_prints_traced_beside_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    calibrate_runs([TORCH / "interleaved-1f1b", TORCH / "zb-v"], None, as_json=False)
    printed = capsys.readouterr().out
    assert "2 traces in zb-v" in printed
    for words in ("makespan", "dependency", "p2p", "cooldown"):
        assert words in printed


def test_traces_of_another_host_are_put_on_one_clock(tmp_path: Path) -> None:
    """Rank 1's clock is 0.3 s ahead; messages both ways tell by how much, to within their delay."""
    for rank in range(2):
        with gzip.open(TORCH / "zb-v" / f"rank{rank}.json.gz", "rt") as file:
            trace = json.load(file)
        trace["host_name"] = f"node {rank}"
        for event in trace["traceEvents"]:
            event["ts"] += 3e5 * rank
        (tmp_path / f"{rank}.json").write_text(json.dumps(trace))
    (there,) = read_measured([TORCH / "zb-v"])[1]
    (here,) = read_measured([tmp_path])[1]
    assert any("us apart, known to" in words for words in here.words)
    assert np.abs(here.start_s - here.start_s[0, 0] - (there.start_s - there.start_s[0, 0])).max() < 0.003


def test_pairs_are_measured_as_pairs(tmp_path: Path) -> None:
    """As torch's DualPipeV annotates them: an F of one stage and a B of another, in one span."""
    trace = GpuTrace(0)
    trace.action("PP:0F0", ("gemm", 0, 100))
    trace.action("PP:1F0", ("gemm", 100, 250))
    trace.action("PP:(0F1;1B0)OVERLAP_F_B", ("gemm", 250, 600), ("gemm", 610, 700))
    trace.action("PP:0B0", ("gemm", 700, 900))
    trace.action("PP:1F1", ("gemm", 900, 1050))
    trace.action("PP:1B1", ("gemm", 1050, 1300))
    trace.action("PP:0B1", ("gemm", 1300, 1500))
    trace.write(tmp_path / "rank0.json")
    (samples,), (run,) = read_measured([tmp_path])
    np.testing.assert_allclose(samples.pair_s[0], 450e-6)
    np.testing.assert_allclose(samples.op_s[Op.F, 0], 100e-6)
    assert run.schedule.schedule.joined.sum() == 1


def test_on_a_gpu_the_first_stage_leaves_its_input_gradient_out(tmp_path: Path) -> None:
    """No kernel runs in its I; the order is found all the same, and each stage keeps what it measured."""
    lower, upper = GpuTrace(0), GpuTrace(1, AHEAD_US)
    lower.action("PP:0F0", ("gemm", 0, 100))
    upper.action("PP:1F0", ("gemm", 110, 210))
    upper.action("PP:1I0", ("gemm", 210, 310))
    upper.action("PP:1W0", ("gemm", 310, 400))
    lower.action("PP:0I0")
    lower.action("PP:0W0", ("gemm", 320, 520))
    lower.write(tmp_path / "rank0.json")
    upper.write(tmp_path / "rank1.json")
    found = calibrate_measured(tmp_path)
    np.testing.assert_allclose(found.costs.input_gradient_s, [0, 100e-6])
    np.testing.assert_allclose(found.costs.weight_gradient_s, [200e-6, 90e-6])
    np.testing.assert_allclose(found.costs.backward_s, [200e-6, 190e-6])
    assert any("B of stages 0, 1 never ran whole" in note for note in found.notes)
    (check,) = found.evidence["checked"]
    assert check["measured_s"] == pytest.approx(520e-6)
    assert abs(check["error"]) < 1e-6
