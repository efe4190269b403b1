"""Whole files or none: output appears under its name only once it is complete."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipesim.errors import ScenarioError


@contextmanager
def complete_file(path: str | Path) -> Iterator[Path]:
    """Give a temporary path to write to, and move it to `path` if the block ends well.

    Raises
    ------
    ScenarioError
        If the place cannot be written to.
    """
    target = Path(path)
    if target.is_dir():
        raise ScenarioError("is a directory; expected the name of a file to write", file=str(path))
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}.", suffix=target.suffix)
    except OSError as error:
        raise ScenarioError(f"cannot be written: {error.strerror}", file=str(path)) from None
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)


def write_text(path: str | Path, text: str | Callable[[], str]) -> None:
    """Write a text file whole or not at all."""
    with complete_file(path) as temporary:
        temporary.write_text(text if isinstance(text, str) else text(), encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
