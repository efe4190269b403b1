"""A run that is told to stop ends with one line and the status that shells expect, whatever it was doing."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from types import FrameType

GRACE_S = 5.0
"""Time to end in good order, before what still runs, such as foreign machine code, is ended as it stands."""
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """SIGINT (Ctrl-C) or SIGTERM came; not a KeyboardInterrupt, which libraries answer in their own ways.

    Parameters
    ----------
    number : int
        Of the signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def status(self) -> int:
        """Exit status: 130 or 143."""
        return 128 + self.number

    def __str__(self) -> str:
        return "interrupted" if self.number == signal.SIGINT else "ended from outside (SIGTERM)"


def listen() -> None:
    """Raise `Stopped` in the main thread when a signal comes, unless the caller has it ignored."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)
    sys.unraisablehook = _repeat
    if os.name != "nt":  # there it takes a socket
        receiver, sender = os.pipe()
        os.set_blocking(sender, False)
        signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        threading.Thread(target=_watch, args=(receiver,), daemon=True).start()


def stop_listening() -> None:
    """Let the process end as it is about to, unless its threads take longer than the grace after a signal."""
    if threading.current_thread() is not threading.main_thread():
        return
    heard = [number for number in _NUMBERS if signal.getsignal(number) is _raise]
    for number in heard:
        signal.signal(number, lambda number, frame: None)
    # The interpreter takes handlers away before modules, and a signal would then end what has its status.
    atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in heard])


def say(words: str) -> None:
    """Print a line of the program's own, where standard error is still there."""
    if sys.stderr is not None:
        os.write(2, f"pipesim: {words}\n".encode(errors="backslashreplace"))


def _raise(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _repeat(ignored: sys.UnraisableHookArgs) -> None:
    """Send the signal again where nobody could hear it: in a destructor, or a callback from machine code."""
    if isinstance(ignored.exc_value, Stopped):
        threading.Timer(0.05, os.kill, (os.getpid(), ignored.exc_value.number)).start()
    else:
        sys.__unraisablehook__(ignored)


def _watch(receiver: int) -> None:
    number = 0
    while number not in _NUMBERS:
        (number,) = os.read(receiver, 1)
    time.sleep(GRACE_S)
    stopped = Stopped(number)
    say(str(stopped))
    os._exit(stopped.status)
