"""Calls in other processes: all done once whatever dies, and what dies twice is named."""

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest
from sweep_workers import square, square_unless_told_to_die

from pipesim.errors import ExecutionError, ScenarioError
from pipesim.questions.call_pool import LOST, CallPool, dask_executor


def run(function, tasks, **where):
    with CallPool(**where) as pool:
        found = [(outcome.task, outcome.value, outcome.lost) for outcome in pool.run(function, tasks)]
    assert len(found) == len({task for task, _, _ in found})
    return {task: value if lost is None else lost for task, value, lost in found}


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_task_once(num_workers):
    expected = {n: n * n for n in range(20)}
    assert run(square, range(20), num_workers=num_workers) == expected


def test_a_killed_worker_loses_nothing_and_a_task_that_kills_twice_is_named(tmp_path):
    (tmp_path / "die-3").write_text("1")
    (tmp_path / "die-7").write_text("2")
    tasks = [(n, str(tmp_path)) for n in range(12)]
    found = run(square_unless_told_to_die, tasks, num_workers=2)
    assert found == {task: LOST if task[0] == 7 else task[0] ** 2 for task in tasks}
    assert (tmp_path / "die-3").read_text() == (tmp_path / "die-7").read_text() == "0"


def test_any_executor_will_do():
    with ThreadPoolExecutor(2) as executor:
        assert run(square, range(9), executor=executor) == {n: n * n for n in range(9)}
        assert executor.submit(square, 3).result() == 9  # not shut down


class Broken(ThreadPoolExecutor):
    def submit(self, function, /, *arguments, **settings):
        future = Future()
        future.set_exception(BrokenProcessPool("gone"))
        return future


class KilledWorker(Exception):  # noqa: N818 - the name that Dask's has
    pass


class Killing(ThreadPoolExecutor):
    def submit(self, function, /, *arguments, **settings):
        future = Future()
        future.set_exception(KilledWorker()) if arguments == (2,) else future.set_result(function(*arguments))
        return future


def test_an_executor_that_breaks_is_said_to_have():
    with Broken() as executor, pytest.raises(ExecutionError, match="executor broke: gone"):
        run(square, [1], executor=executor)


def test_what_kills_the_workers_of_a_cluster_is_lost_alone():
    with Killing() as executor:
        assert run(square, [1, 2, 3], executor=executor) == {1: 1, 2: LOST, 3: 9}


def test_without_dask_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ScenarioError, match=r"pip install .\.\[dask\]"), dask_executor("tcp://127.0.0.1:1"):
        pass
