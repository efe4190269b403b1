"""A call beside others: its value and its errors arrive where it is waited for."""

from __future__ import annotations

import threading

import pytest

from pipesim.errors import ScheduleError
from pipesim.questions.beside import beside


def test_the_value_comes_when_it_is_asked_for() -> None:
    go_on = threading.Event()
    value = beside(lambda: go_on.wait(30))
    go_on.set()
    assert value() is True


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise ScheduleError("no")

    with pytest.raises(ScheduleError, match="no"):
        beside(fail)()
