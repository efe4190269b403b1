"""A call that runs beside others of this process, for what spends its time outside the interpreter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")


def beside(function: Callable[[], Value]) -> Callable[[], Value]:
    """Start a call in a thread, and return what waits for its value, or raises what it raised.

    The thread keeps no process from ending. Compiled searches and the compiler itself let other threads run.
    """
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result
