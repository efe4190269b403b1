"""A run that cannot go on ends soon, says who and where, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from executor_programs import SCHEDULE, descendants, environment

from pipesim.errors import ExecutionError
from pipesim.executor import EmulatedWorkload, FactoryWorkload, RankPool, Run, execute
from pipesim.ir import lower
from pipesim.ir.actions import Op, Schedule
from pipesim.schedules import Shape, generate

STALL_S, STARTUP_S, LIMIT_S = 6.0, 8.0, 300.0
"""Long enough for a busy machine; far less than the half hour after which gloo itself gives up."""
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2, stall_timeout_s=STALL_S, startup_timeout_s=STARTUP_S) as started:
        yield started


CASES = {
    "raises": ("rank 1 at 1F2 of step 0", "ValueError: the layer broke"),
    "killed": ("rank 1 at 1F2 of step 0", "was killed by SIGKILL"),
    "exits": ("rank 1 at 1F2 of step 0", "ended with exit status 3"),
    "stands_still": ("no rank got on for 6 s", "rank 1 at 1F2 of step 0", "rank 0 at 0B"),
    "never_built": ("no rank got on for 8 s", "rank 1, building its stages"),
    "mismatched": ("rank 1, building", "stage 1 does not take the output of stage 0, 3x5 float32"),
    "wrong_targets": ("rank 1, building", "stage 1 does not take its targets"),
    "ragged": ("rank 0 at 0F1 of step 0", "stage 0 gave 2x6 float32 for microbatch 1", "it gave 3x6 float32"),
    "diverging": ("rank 1", "step 0", "the loss of microbatch 0 is inf", "1F0"),
    "not_a_model": ("returned Linear; expected a pipesim.executor.models.PipelineModel",),
    "no_such": ("'executor_models:no_such' cannot be loaded",),
}


@pytest.mark.parametrize("model", CASES)
def test_a_failure_names_rank_and_action(model: str, pool: RankPool) -> None:
    begin = time.monotonic()
    with pytest.raises(ExecutionError) as caught:
        run(model, pool=pool)
    assert time.monotonic() - begin < LIMIT_S
    for word in CASES[model]:
        assert word in str(caught.value)


def run(model: str, **settings: Any) -> Run | None:
    return execute(SCHEDULE, FactoryWorkload(f"executor_models:{model}"), warmup=0, num_steps=2, **settings)


def test_after_a_failure_the_pool_goes_on(pool: RankPool) -> None:
    with pytest.raises(ExecutionError):
        run("raises", pool=pool)
    assert run("mlp", pool=pool) is not None


@needs_proc
def test_a_rank_killed_from_outside_ends_the_run_and_nothing_is_left() -> None:
    before = descendants()
    workload = EmulatedWorkload((2.0,) * len(SCHEDULE.op), (64, 0), (0, 0))
    killed: list[int] = []

    def kill() -> None:
        for _ in range(int(10 * LIMIT_S)):
            forked = sorted(set(descendants()) - set(before))
            if len(forked) == 3:
                time.sleep(2)
                killed.append(forked[-1])
                os.kill(forked[-1], signal.SIGKILL)
                return
            time.sleep(0.1)

    killer = threading.Thread(target=kill)
    killer.start()
    begin = time.monotonic()
    with pytest.raises(ExecutionError, match=r"rank 1.*(at 1[FB]|building|between).*was killed by SIGKILL"):
        execute(SCHEDULE, workload, device="emulated", warmup=0, num_steps=2)
    killer.join()
    assert killed
    assert time.monotonic() - begin < LIMIT_S
    assert descendants() == before


@needs_proc
def test_a_caller_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "from executor_programs import *\n"
        "execute(SCHEDULE, EmulatedWorkload((9.0,) * len(SCHEDULE.op), (64, 0), (0, 0)), device='emulated')\n"
    )
    before = set(descendants())
    caller = subprocess.Popen([sys.executable, "-c", program], env=environment())
    started: set[int] = set()
    for _ in range(int(10 * LIMIT_S)):
        started = set(descendants()) - before
        if len(started) == 4:
            break
        time.sleep(0.1)
    assert len(started) == 4
    caller.kill()
    caller.wait()
    for _ in range(int(10 * LIMIT_S)):
        alive = [pid for pid in started if Path(f"/proc/{pid}").exists()]
        if not alive:
            break
        time.sleep(0.1)
    assert not alive


TORCHRUN_RANK = """
import pickle, sys
import torch
import torch.distributed.distributed_c10d as torch_objects
from executor_programs import *
torch.optim.SGD([torch.zeros(1)])  # imports much of torch, which takes part of pickle to build on
# Whatever comes over a socket, nothing of it may be unpickled.
pickle.load = pickle.loads = pickle.Unpickler = torch_objects._unpickler = None
try:
    mlp = FactoryWorkload("executor_models:mlp")
    run = execute(SCHEDULE, mlp, num_steps=2, startup_timeout_s=float(sys.argv[1]))
    print("nothing" if run is None else f"{run.num_steps} steps, {run.losses[0]:.6f}")
except ExecutionError as error:
    print(error)
"""


def under_torchrun(processes: range, startup_s: float, **variables: str) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} | variables
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TORCHRUN_RANK, str(startup_s)],
            env=environment(RANK=str(process), **shared),
            stdout=subprocess.PIPE,
            text=True,
        )
        for process in processes
    ]
    return [rank.communicate(timeout=LIMIT_S)[0].splitlines()[-1] for rank in ranks]


def test_processes_of_torchrun_are_the_ranks(pool: RankPool) -> None:
    expected = execute(SCHEDULE, FactoryWorkload("executor_models:mlp"), num_steps=2, pool=pool)
    assert expected is not None
    assert under_torchrun(range(2), LIMIT_S) == [f"2 steps, {expected.losses[0]:.6f}", "nothing"]


def test_a_rank_that_torchrun_never_started_is_named() -> None:
    assert under_torchrun(range(1), 2) == ["rank 1 (process 1) never started: waited 2 s"]


def test_what_cannot_run_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp = FactoryWorkload("executor_models:mlp")
    times = EmulatedWorkload((0.0,), (0,), (0,))
    with pytest.raises(ExecutionError, match="found device 'tpu'; expected one of cpu, cuda, emulated"):
        execute(SCHEDULE, mlp, device="tpu")
    with pytest.raises(ExecutionError, match="the device emulated was given a model"):
        execute(SCHEDULE, mlp, device="emulated")
    with pytest.raises(ExecutionError, match="the device cpu was given times"):
        execute(SCHEDULE, times)
    with pytest.raises(ExecutionError, match=r"the times are for \(1, 1, 1\) rows and stages"):
        execute(SCHEDULE, times, device="emulated")
    with pytest.raises(ExecutionError, match="found 0 replicas"):
        execute(SCHEDULE, mlp, num_replicas=0)
    with pytest.raises(ExecutionError, match=r"must come from pipesim\.ir\.lower"):
        execute(SCHEDULE.schedule, mlp)
    dropped = lower(generate("zb-h1", Shape(2, 1, 4)))
    first_w = int(np.flatnonzero(dropped.op == Op.W)[0])
    with pytest.raises(ExecutionError, match=r"must come from pipesim\.ir\.lower"):
        execute(dropped.select(np.arange(len(dropped.op)) != first_w), mlp)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ExecutionError, match=r"install it with: pip install '\.\[torch\]' in pipesim's folder$"
    ):
        execute(SCHEDULE, mlp)


def test_fewer_layers_than_stages(pool: RankPool) -> None:
    with pytest.raises(ExecutionError, match=r"has 3 layers, fewer than the schedule's 4 stages"):
        execute(
            lower(generate("interleaved-1f1b", Shape(2, 2, 2))),
            FactoryWorkload("executor_models:three_layers"),
            pool=pool,
        )


def test_slices_need_a_sequence(pool: RankPool) -> None:
    sliced = lower(Schedule.from_csv("0F0,0F0.1,0B0.1,0B0\n1F0,1F0.1,1B0.1,1B0\n"))
    with pytest.raises(ExecutionError, match="cuts the sequence into slices, and the model has none"):
        execute(sliced, FactoryWorkload("executor_models:mlp"), pool=pool)


def test_a_pool_too_small(pool: RankPool) -> None:
    with pytest.raises(ExecutionError, match="4 ranks are needed, the pool has 2"):
        execute(SCHEDULE, FactoryWorkload("executor_models:mlp"), num_replicas=2, pool=pool)
