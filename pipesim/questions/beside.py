"""A call that no signal breaks off: it runs in a thread, and signals reach the main one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")


def beside(function: Callable[[], Value]) -> Callable[[], Value]:
    """Start a call in a thread, and return what waits for its value, or raises what it raised.

    The thread keeps no process from ending.
    """
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result
