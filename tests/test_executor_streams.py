"""Ranks as streams of one device, on stand-ins: who waits for whom, whose clock it is, and which GPU."""

# ruff: noqa: E402, N802 - what follows needs torch; a stand-in has its model's names

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from executor_reference import reference, small_transformer, worst
from stand_in_streams import StandIn

from pipesim.errors import ExecutionError
from pipesim.executor import TransformerWorkload, execute, gpus, lanes, running, streams, torchrun, worker
from pipesim.executor.instructions import Instruction
from pipesim.executor.job import Job, RankError
from pipesim.executor.stream_device import StreamDevice
from pipesim.executor.streams import tie
from pipesim.executor.torchrun import local_index
from pipesim.executor.worker import Worker
from pipesim.ir import lower
from pipesim.ir.actions import Op
from pipesim.schedules import Shape, generate


def job_of(name: str, shape: tuple[int, int, int], **settings: int) -> Job:
    workload = TransformerWorkload(small_transformer(), dtype="float64")
    return Job(lower(generate(name, Shape(*shape))), workload, "cpu", keep_state=True, **settings)


@pytest.mark.parametrize(
    ("name", "shape"), [("chimera", (4, 1, 4)), ("dualpipe", (2, 1, 4)), ("zb-v", (2, 2, 4))]
)
def test_streams_wait_for_each_other_where_they_share(
    name: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer knows its producer's mark, and an optimizer the reductions of all lanes."""
    stand_ins = [StandIn(number) for number in range(shape[0])]
    reached: dict[object, tuple[int, int]] = {}

    def after(device: StreamDevice, instruction: Instruction) -> None:
        stream = device.stream
        key = (
            instruction.gives
            if instruction.op <= Op.W
            else (instruction.op, stream.number, instruction.stage)
        )
        reached[key] = stream.number, stream.mark().known[stream.number]

    def before(device: StreamDevice, instruction: Instruction) -> None:
        known, needed = device.stream.known, []
        assert device.stream.is_active
        if instruction.op <= Op.W and instruction.waits:
            needed = [reached[instruction.message]]
        if instruction.op is Op.OPTIMIZER:
            needed = [
                at for key, at in reached.items() if isinstance(key, tuple) and key[0] is Op.REDUCE_GRAD
            ]
            assert len(needed) >= shape[0]
        assert all(known.get(number, 0) >= count for number, count in needed)

    monkeypatch.setattr(StreamDevice, "after", after)
    monkeypatch.setattr(StreamDevice, "before", before)
    job = job_of(name, shape)
    assert worst(lanes.run_in_lanes(job, streams=stand_ins), reference(job)) == (0, True)


def test_times_are_on_the_hosts_clock() -> None:
    """A device clock that runs 1 % fast from another origin; the mark is a sleep of 20 ms after the tie."""
    device = StreamDevice(1, StandIn(0, rate=1.01, origin_ns=-1e15))
    row = Instruction(0, Op.F, 0, 0, 0)
    device.begin_step()
    time.sleep(0.02)
    earliest = time.perf_counter_ns()
    device.before(row)
    device.after(row)
    latest = time.perf_counter_ns()
    columns, disturbed = device.end_step()
    bound = device.clock_bound_ns
    assert 0 < bound < 10_000_000
    assert earliest - bound <= columns["start"][0] <= columns["end"][0] <= latest + bound
    assert not disturbed


def test_the_narrowest_bracket_ties_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(ns=1000, num_finished=0)

    class Uneven(StandIn):
        def finish(self) -> None:
            now.num_finished += 1
            now.ns += 80 if now.num_finished == 10 else 5000

    monkeypatch.setattr(streams, "time", SimpleNamespace(perf_counter_ns=lambda: now.ns))
    found = tie(Uneven(0))
    # Nine calls of 5 us come before: one to warm up, eight that are counted.
    assert (found.host_ns, found.bound_ns) == (1000 + 9 * 5000 + 40, 40)


def shared_gpu(monkeypatch: pytest.MonkeyPatch, slow_s: float) -> None:
    stand_ins = [StandIn(number, slow_s=slow_s) for number in range(2)]
    monkeypatch.setattr(gpus, "require_gpus", lambda: 1)
    monkeypatch.setattr(gpus, "partitioned_streams", lambda num_lanes: (stand_ins, "stand-ins"))
    monkeypatch.setattr(lanes, "environment", lambda device, index: {})
    monkeypatch.delenv("RANK", raising=False)


def test_with_fewer_gpus_than_ranks_they_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_gpu(monkeypatch, 0.002)
    job = job_of("1f1b", (2, 1, 2))
    run = execute(job.schedule, job.workload, device="cuda", num_steps=1, warmup=0)
    assert run.environment["lanes"] == "stand-ins"
    assert float(run.environment[lanes.HOST_SHARE]) < 0.5
    assert run.clock_bound_s.max() > 0


def test_a_run_that_waits_for_its_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_gpu(monkeypatch, 0.0)
    job = job_of("1f1b", (2, 1, 2))
    with pytest.raises(ExecutionError, match=r"host was queuing work for \d+% of a step; above 50%"):
        execute(job.schedule, job.workload, device="cuda", num_steps=1, warmup=0)


def test_a_torch_for_cpus_is_refused_before_any_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "RankPool", None)
    monkeypatch.setattr(torch.version, "cuda", None)
    job = job_of("1f1b", (2, 1, 2))
    with pytest.raises(ExecutionError, match=r"is built without CUDA; for --device cuda install"):
        execute(job.schedule, job.workload, device="cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(ExecutionError, match=r"finds no GPU with CUDA_VISIBLE_DEVICES=-1$"):
        execute(job.schedule, job.workload, device="cuda")


def test_each_process_finds_its_own_gpu() -> None:
    assert [gpus.choose_gpu(process, 4) for process in range(4)] == [0, 1, 2, 3]
    assert gpus.choose_gpu(3, 1) == 0
    with pytest.raises(ExecutionError, match="needs GPU 3, this process sees 2"):
        gpus.choose_gpu(3, 2)
    gpus.refuse_shared(["node a", "node b"])
    with pytest.raises(ExecutionError, match="processes 1 and 2 have the same GPU"):
        gpus.refuse_shared(["a", "b", "b"])
    assert local_index({"LOCAL_RANK": "2", "SLURM_LOCALID": "1"}, 9) == 2
    assert local_index({"SLURM_LOCALID": "1"}, 9) == 1
    assert local_index({}, 9) == 9


class Driver(SimpleNamespace):
    """Stands for cuda.bindings.driver on a device of 132 multiprocessors."""

    def __init__(self) -> None:
        super().__init__(
            num_splits=0,
            CUdevResourceType=SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1),
            CUgreenCtxCreate_flags=SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1),
            CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1),
        )

    def cuDeviceGet(self, index: int) -> tuple[int, str]:
        return 0, "device"

    def cuDeviceGetDevResource(self, device: str, kind: int) -> tuple[int, range]:
        return 0, range(132)

    def cuDevSmResourceSplitByCount(self, count: int, whole: range, flags: int, size: int) -> tuple:
        self.num_splits += 1
        found = [whole[at * size : (at + 1) * size] for at in range(min(count, len(whole) // size))]
        return 0, found, len(found), whole[count * size :]

    def cuDevResourceGenerateDesc(self, parts: list[range], count: int) -> tuple[int, range]:
        return 0, parts[0]

    def cuGreenCtxCreate(self, part: range, device: str, flags: int) -> tuple[int, range]:
        return 0, part

    def cuGreenCtxStreamCreate(self, context: range, flags: int, priority: int) -> tuple[int, int]:
        return 0, context.start


def test_one_split_gives_every_lane_its_own_multiprocessors() -> None:
    driver = Driver()
    assert gpus._split(driver, torch.device("cuda", 0), 4, 32) == [0, 32, 64, 96]
    assert driver.num_splits == 1
    with pytest.raises(RuntimeError, match="made 2 parts of 4"):
        gpus._split(driver, torch.device("cuda", 0), 4, 64)


def test_after_an_error_on_gpus_nothing_waits_for_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Destroying NCCL's groups would; they are aborted instead, those that the job formed and the first."""
    aborted = []

    def group(name: str) -> SimpleNamespace:
        return SimpleNamespace(abort=lambda: aborted.append(name))

    def never() -> None:
        raise AssertionError("would wait")

    class Failing(Worker):
        def __init__(self, *arguments: object, **settings: object) -> None:
            super().__init__(*arguments, **settings)
            self._groups = {("nccl", "", 0, 1): group("all"), ("nccl", "", 1): outside}

        def run(self, job: Job) -> None:
            raise RankError("rank 0: the layer broke")

    outside = object()
    world = SimpleNamespace(
        group=SimpleNamespace(WORLD=group("world")),
        GroupMember=SimpleNamespace(NON_GROUP_MEMBER=outside),
        destroy_process_group=never,
    )
    monkeypatch.setattr(worker, "dist", world)
    monkeypatch.setattr(torchrun, "dist", world)
    for name in ("_meet", "_join", "connect"):
        monkeypatch.setattr(torchrun, name, lambda *arguments, **settings: None)
    monkeypatch.setattr(torchrun, "Worker", Failing)
    shared = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    job = replace(job_of("1f1b", (2, 1, 2)), device="cuda")
    with pytest.raises(RankError, match="the layer broke"):
        torchrun.run_here(job, timeout_s=1, startup_timeout_s=1, threads_per_rank=1)
    assert sorted(aborted) == ["all", "world"]
