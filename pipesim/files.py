"""Whole files or none: output appears under its name only once it is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipesim.errors import ScenarioError


@contextmanager
def complete_file(path: str | Path) -> Iterator[Path]:
    """Give a temporary path to write to, and move it to `path` if the block ends well.

    A link is followed; a device or a pipe, which nothing may replace, is written into once all is known.

    Raises
    ------
    ScenarioError
        If the place cannot be written to.
    """
    try:
        target = Path(_place(path))
        if target.is_dir():
            raise ScenarioError("is a directory; expected the name of a file to write", file=str(path))
        special = Path(path).exists() and not Path(path).is_file()
        handle, name = tempfile.mkstemp(
            dir=None if special else target.parent, prefix=f".{target.stem}."[:100], suffix=Path(path).suffix
        )
        os.close(handle)
        try:
            yield Path(name)
            if special:
                with open(name, "rb") as content, open(path, "wb") as stream:
                    shutil.copyfileobj(content, stream)
            else:
                os.chmod(name, 0o666 & ~_umask())
                os.replace(name, target)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise ScenarioError(f"cannot be written: {error.strerror or error}", file=str(path)) from None


def write_text(path: str | Path, text: str | Callable[[], str]) -> None:
    """Write a text file whole or not at all."""
    with complete_file(path) as temporary:
        temporary.write_text(text if isinstance(text, str) else text(), encoding="utf-8")


def check_outputs(outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse to write over a file that is read, or two files to one place; None is skipped.

    Raises
    ------
    ScenarioError
        Before anything is written.
    """
    taken = {_place(path): "is read as input" for path in inputs if path is not None}
    for path in outputs:
        if path is None:
            continue
        place = _place(path)
        if place in taken:
            raise ScenarioError(f"{taken[place]}; choose another name for the output", file=str(path))
        taken[place] = "is already another output"


def printable_stem(path: str | Path) -> str:
    """Name of a file without its ending, for titles; what is not text in it becomes a question mark."""
    return Path(path).stem.encode(errors="replace").decode()


def _place(path: str | Path) -> str:
    """Where a name leads once its links are followed."""
    return os.path.realpath(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
