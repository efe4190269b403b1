"""A search beside the rest: the same answer as without, whatever becomes of the other process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipesim import second_process
from pipesim.cli.app import app
from pipesim.questions import compare
from pipesim.scenario import load_scenario
from pipesim.second_process import SecondProcess

TEACHING = Path(__file__).parent.parent / "scenarios" / "teaching.yaml"
NAMES = ["1f1b", "auto", "gpipe"]
WAIT_S = 60

two_cores = pytest.mark.skipif(
    hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) < 2,
    reason="none is started on one core",
)


@pytest.fixture(scope="module")
def scenario():
    return load_scenario(TEACHING, ["parallel.virtual_stages=2"])


@pytest.fixture
def alone(scenario, whole_searches):
    return compare(scenario, schedules=NAMES).to_dict()


@two_cores
def test_the_answer_is_that_of_one_process(scenario, alone):
    with SecondProcess() as second:
        found = second.prepare(scenario, "auto", 2)()
        assert found is not None
        assert found.scenario is scenario
        assert compare(scenario, schedules=NAMES, second=second).to_dict() == alone


@two_cores
def test_what_is_refused_there_has_no_answer(scenario):
    with SecondProcess() as second:
        assert second.prepare(scenario, "dualpipe-v", 7)() is None
        assert second.prepare(scenario, "1f1b", 1)() is not None


@two_cores
def test_a_process_that_dies_loses_nothing(scenario, alone):
    with SecondProcess() as second:
        os.kill(second.pid, signal.SIGKILL)
        assert compare(scenario, schedules=NAMES, second=second).to_dict() == alone


def test_without_one_the_answer_is_the_same(scenario, alone):
    with SecondProcess(wanted=False) as second:
        assert second.pid is None
        assert compare(scenario, schedules=NAMES, second=second).to_dict() == alone


@two_cores
def test_what_was_started_ahead_is_for_the_process_that_did_so(monkeypatch):
    second_process.start_ahead()
    try:
        (ahead,) = second_process._ahead.values()
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: 1)
            with SecondProcess() as second:
                assert second.pid not in (None, ahead.pid)
        with SecondProcess() as second:
            assert second.pid == ahead.pid
    finally:
        second_process.end_ahead()
    assert ahead.returncode is not None


def test_help_in_this_process_leaves_no_other():
    assert CliRunner().invoke(app, ["compare", "--help"]).exit_code == 0
    assert second_process._ahead == {}


@two_cores
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_it_does_not_outlive_the_first(number):
    code = (
        "import importlib; from pipesim.cli import main\n"
        "module = importlib.import_module('pipesim.questions.compare')\n"
        "def prepare(*_, **__):\n"
        "    import time; print('comparing', flush=True); time.sleep(60)\n"
        "module.prepare = prepare\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "compare", str(TEACHING)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:
        assert process.stdout.readline() == "comparing\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 1
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        _, message = process.communicate(timeout=WAIT_S)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert message.count("\n") == (0 if number == signal.SIGKILL else 1)
    until = time.monotonic() + WAIT_S
    while any(running(child) for child in children):
        assert time.monotonic() < until
        time.sleep(0.02)


def running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
