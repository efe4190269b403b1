"""The command line: verbs that call the layers below and print what they return."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys

from pipesim.cli.stopping import Stopped, listen, say, stop_listening
from pipesim.processes import COLLECT_AFTER

_MOST_CHARACTERS = 4_000
"""Of a message: it may quote what was found, however long."""
_SEARCHING = ("compare", "report")
"""Verbs that search for an order in a second process, which starts before their imports."""
_READER_HAS_GONE = 141
"""As a shell says of a program that SIGPIPE ended."""


def main() -> None:
    """Run `pipesim`, the one place where errors become an exit status.

    0 when done; 2 where the input is wrong or infeasible, or the system
    cannot do what is needed; 130 and 143 after SIGINT and SIGTERM, 141 where the reader of the output has
    gone. A traceback is a bug.
    """
    try:
        gc.set_threshold(COLLECT_AFTER)
        atexit.register(gc.freeze)  # else the interpreter looks through all objects once more, for 0.3 s
        listen()
        if sys.argv[1:2] and sys.argv[1] in _SEARCHING:
            _run_beside_another()
        else:
            _run()
    except Stopped as stopped:
        _discard_output()
        say(str(stopped))
        sys.exit(stopped.status)
    finally:
        stop_listening()


def _run_beside_another() -> None:
    from pipesim.second_process import end_ahead, start_ahead

    start_ahead()
    try:
        _run()
    finally:
        end_ahead()


def _run() -> None:
    from pipesim.cli.app import app
    from pipesim.errors import PipesimError

    if sys.stdout is None:  # closed by the caller, who wants the files or the status
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        try:
            from pipesim.cli.app import app

            app(prog_name="pipesim")
        finally:
            sys.stdout.flush()
    except PipesimError as error:
        _fail(str(error))
    except (BrokenPipeError, SystemExit) as ended:
        if isinstance(ended, SystemExit) and not isinstance(ended.__context__, BrokenPipeError):
            raise
        _discard_output()
        sys.exit(_READER_HAS_GONE)
    except MemoryError:
        _fail("not enough memory; ask for less")
    except OSError as error:
        _discard_output()
        place = "standard output cannot be written" if error.filename is None else os.fsdecode(error.filename)
        _fail(f"{place}: {error.strerror or error}")


def _fail(message: str) -> None:
    shown = message if len(message) <= _MOST_CHARACTERS else f"{message[:_MOST_CHARACTERS]} ..."
    say("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in shown))
    sys.exit(2)


def _discard_output() -> None:
    """Let what is left in the buffer vanish: the interpreter writes it once more when it ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
