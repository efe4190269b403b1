"""The command line: verbs that call the layers below and print what they return."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run `pipesim`: exit 0 when done, 2 where the input is wrong or infeasible."""
    from pipesim.cli.app import app
    from pipesim.errors import PipesimError

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        app(prog_name="pipesim")
    except PipesimError as error:
        print(f"pipesim: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
