"""Whole files or none: output appears under its name only once it is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from pipesim.errors import PipesimError, ScenarioError

Reader: TypeAlias = Callable[[Path], object]
PICTURE_FORMATS = (".png", ".svg")


@contextmanager
def complete_file(path: str | Path, *, reader: Reader | None = None) -> Iterator[Path]:
    """Give a temporary path to write to, and move it to `path` if the block ends well.

    A link is followed; a device or a pipe, which nothing may replace, is written into once all is known.

    Parameters
    ----------
    path : str or Path
        Where the file is to appear.
    reader : Callable, optional
        What will read the file: called with the temporary path, and nothing is put in place if it refuses.

    Raises
    ------
    ScenarioError
        If the place cannot be written to, or what was written cannot be read.
    """
    try:
        temporary = _temporary_beside(path)
        try:
            yield temporary
            if reader is not None:
                _check(reader, temporary, path)
            if _is_special(path):
                with temporary.open("rb") as content, open(path, "wb") as stream:
                    shutil.copyfileobj(content, stream)
            else:
                os.chmod(temporary, 0o666 & ~_umask())
                os.replace(temporary, _place(path))
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _not_writable(path, error) from None


def _check(reader: Reader, temporary: Path, path: str | Path) -> None:
    try:
        reader(temporary)
    except PipesimError as error:
        words = str(error).replace(str(temporary), "it")
        raise ScenarioError(
            f"is not written, for it could not be read again: {words}", file=str(path)
        ) from None


def write_text(path: str | Path, text: str | Callable[[], str], *, reader: Reader | None = None) -> None:
    """Write a text file whole or not at all; see `complete_file`."""
    with complete_file(path, reader=reader) as temporary:
        temporary.write_text(text if isinstance(text, str) else text(), encoding="utf-8")


def check_outputs(
    *outputs: str | Path | None,
    pictures: Iterable[str | Path | None] = (),
    inputs: Iterable[str | Path | None] = (),
) -> None:
    """Find out before the work whether its results can be written; None is skipped.

    Parameters
    ----------
    *outputs : str or Path
        Files that are to be written.
    pictures : iterable of str or Path
        More of them, which must end in .png or .svg.
    inputs : iterable of str or Path
        Files that are read.

    Raises
    ------
    ScenarioError
        If an output is an input or another output, no picture where one is asked for, or not writable.
    """
    drawn = [path for path in pictures if path is not None]
    taken = {_place(path): "is read as input" for path in inputs if path is not None}
    for path in (*(path for path in outputs if path is not None), *drawn):
        place = _place(path)
        if place in taken:
            raise ScenarioError(f"{taken[place]}; choose another name for the output", file=str(path))
        taken[place] = "is already another output"
        try:
            _temporary_beside(path).unlink()
        except OSError as error:
            raise _not_writable(path, error) from None
    for path in drawn:
        check_picture(path)


def check_picture(path: str | Path) -> None:
    """Refuse an ending that no picture has.

    Raises
    ------
    ScenarioError
        If it is neither .png nor .svg.
    """
    if Path(path).suffix.lower() not in PICTURE_FORMATS:
        raise ScenarioError(f"pictures are {' or '.join(PICTURE_FORMATS)}", file=str(path))


def printable_stem(path: str | Path) -> str:
    """Name of a file without its ending, for titles; what is not text in it becomes a question mark."""
    return Path(path).stem.encode(errors="replace").decode()


def _temporary_beside(path: str | Path) -> Path:
    """Make an empty file in the folder that `path` leads to; elsewhere for a device or a pipe."""
    target = Path(_place(path))
    if target.is_dir():
        raise ScenarioError("is a directory; expected the name of a file to write", file=str(path))
    folder = None if _is_special(path) else target.parent
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{target.stem}."[:100], suffix=Path(path).suffix)
    os.close(handle)
    return Path(name)


def _is_special(path: str | Path) -> bool:
    return Path(path).exists() and not Path(path).is_file()


def _not_writable(path: str | Path, error: OSError) -> ScenarioError:
    return ScenarioError(f"cannot be written: {error.strerror or error}", file=str(path))


def _place(path: str | Path) -> str:
    """Where a name leads once its links are followed."""
    return os.path.realpath(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
