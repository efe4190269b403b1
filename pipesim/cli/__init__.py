"""The command line: verbs that call the layers below and print what they return."""

from __future__ import annotations

import errno
import io
import os
import sys

_INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    """Run `pipesim`: exit 0 when done, 2 where the input is wrong or infeasible or the output has no room.

    Ctrl-C ends it with 130.
    """
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
        _stop(str(error))
    except KeyboardInterrupt:  # while modules load
        _stop("interrupted", _INTERRUPTED)
    except SystemExit as end:  # what the command line makes of Ctrl-C
        if end.code != _INTERRUPTED:
            raise
        _stop("interrupted", _INTERRUPTED)
    except BrokenPipeError:  # the reader has seen enough
        _discard_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        _discard_output()
        _stop(f"standard output cannot be written: {error.strerror}")


def _stop(message: str, status: int = 2) -> None:
    print(f"pipesim: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(status)


def _discard_output() -> None:
    """Let what is left in the buffer vanish: the interpreter writes it once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
