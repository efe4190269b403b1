"""A sweep on a Dask cluster: a scheduler and two worker processes, one of them killed in mid-sweep."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from pipesim.errors import ExecutionError, ScenarioError
from pipesim.questions.call_pool import dask_executor
from pipesim.questions.sweep import Sweep, run_sweep
from pipesim.questions.variations import parse_axis
from pipesim.scenario import read_yaml_mapping

pytestmark = pytest.mark.skipif(find_spec("distributed") is None, reason="needs dask's distributed")
TEACHING = Path(__file__).parent.parent / "scenarios" / "teaching.yaml"
START_S = 60


@contextmanager
def program(log, module, *arguments):
    """One of Dask's programs, writing to a file; killed in the end."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *map(str, arguments)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env=os.environ | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s"},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(pattern, log):
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if found := re.search(pattern, log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def cluster(stack, folder):
    """Start a scheduler and two workers; its address and the processes."""
    logs = [folder / name for name in ("scheduler.log", "one.log", "two.log")]
    settings = ("--host", "127.0.0.1", "--port", 0, "--no-dashboard")
    scheduler = stack.enter_context(program(logs[0], "dask_scheduler", *settings))
    address = wait_for(r"Scheduler at:\s+(tcp://\S+)", logs[0])
    settings = ("--no-nanny", "--nthreads", 1, "--no-dashboard", "--death-timeout", START_S)
    workers = [stack.enter_context(program(log, "dask_worker", address, *settings)) for log in logs[1:]]
    for log in logs[1:]:
        wait_for(r"(Registered to)", log)
    return address, scheduler, workers


def test_one_worker_killed_in_mid_sweep_and_every_row_once(tmp_path):
    axes = (
        parse_axis("parallel.pipeline=4,6"),
        parse_axis("batch.microbatches=8,12,16,20,24,28,32,36,40,44"),
    )
    sweep = Sweep(read_yaml_mapping(TEACHING), axes, str(TEACHING), "engine")
    output = tmp_path / "out.csv"
    with ExitStack() as stack:
        address, _, workers = cluster(stack, tmp_path)
        executor = stack.enter_context(dask_executor(address))
        killed = []

        def kill_one(done, total):
            if done == 4:
                workers[0].send_signal(signal.SIGKILL)
                killed.append(done)

        report = run_sweep(sweep, output, executor=executor, progress=kill_one)
        assert workers[0].wait() == -signal.SIGKILL
        assert workers[1].poll() is None
    assert killed
    assert report.failed == []
    assert pd.read_csv(output)["row"].tolist() == list(range(20))
    run_sweep(sweep, tmp_path / "here.csv", num_workers=1)
    assert output.read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_a_scheduler_that_goes_away_is_named_and_what_was_done_is_kept(tmp_path):
    axes = (parse_axis("batch.microbatches=8,12,16,20,24,28,32,36,40,44"),)
    sweep = Sweep(read_yaml_mapping(TEACHING), axes, str(TEACHING), "engine")
    output = tmp_path / "out.csv"
    with ExitStack() as stack:
        address, scheduler, _ = cluster(stack, tmp_path)

        def kill(done, total):
            if done == 2:
                scheduler.kill()

        with (
            pytest.raises(ExecutionError, match=f"the Dask scheduler at {address} went away.*is kept"),
            dask_executor(address) as executor,
        ):
            run_sweep(sweep, output, executor=executor, progress=kill)
    assert not output.exists()
    report = run_sweep(sweep, output, num_workers=1)
    assert report.num_resumed >= 2
    assert len(report.rows) == 10


@pytest.mark.parametrize("address", ["nonsense://1", "host", "nonsense://host:1"])
def test_no_scheduler_at_the_address(address):
    with (
        pytest.raises(ScenarioError, match=f"--dask: no Dask scheduler at {address}"),
        dask_executor(address),
    ):
        pass
