"""The one way to read a file: what it may be, how large, and one message for everything else."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pipesim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

SMALL_MIB = 1
"""What people write: scenarios, configurations, scripts."""
LARGE_MIB = 512
"""What programs write: traces, runs, tables, journals, orders of actions."""
LIMIT_VARIABLE = "PIPESIM_MAX_FILE_MIB"
"""Environment variable that takes the place of `LARGE_MIB`."""

MAX_LINE = 1 << 24
MAX_LINES = 1_000_000
MAX_CELLS = 50_000_000
MAX_PACKING = 200
"""Bytes that one packed byte may stand for; profiler traces pack 10 to 60."""

_MIB = 1 << 20
_BYTES_A_VALUE = 8
"""JSON that has a comma or bracket more often holds little and takes many times its size in memory."""


def read_text(path: str | Path, *, large: bool = False) -> str:
    """Read a UTF-8 text file.

    Parameters
    ----------
    path : str or Path
        A regular file, or a pipe of ``/dev`` such as ``/dev/stdin``. One that ends in ``.gz`` is unpacked
        where it may be large.
    large : bool
        Whether a program writes such files: 512 MiB are allowed, or ``PIPESIM_MAX_FILE_MIB``, in place of 1.

    Returns
    -------
    str
        Its text, without a byte order mark.

    Raises
    ------
    ScenarioError
        Missing, a directory, a device, a pipe that has a name, unreadable, too large, packed beyond measure,
        or not UTF-8 text.
    """
    content = read_bytes(path, large=large)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"is not a UTF-8 text file (byte {error.start})", file=str(path)) from None
    if "\0" in text:
        raise ScenarioError(f"is not a text file (byte {text.index(chr(0))} is zero)", file=str(path))
    return text


def read_bytes(path: str | Path, *, large: bool = False) -> bytes:
    """Read a file whole; see `read_text`."""
    if not isinstance(path, str | os.PathLike):
        raise ScenarioError(f"found {type(path).__name__}; needed: the name of a file")
    file = str(path)
    max_mib = _large_mib() if large else SMALL_MIB
    try:
        check_is_file(path)
        with Path(path).open("rb") as stream:
            if large and Path(path).suffix == ".gz":
                content = _unpacked(stream, max_mib * _MIB, file)
            else:
                content = stream.read(max_mib * _MIB + 1)
    except EOFError:
        raise ScenarioError("cannot be read: is not whole", file=file) from None
    except (OSError, ValueError, zlib.error) as error:
        reason = "is not packed by gzip" if isinstance(error, gzip.BadGzipFile) else _reason(error)
        raise ScenarioError(f"cannot be read: {reason}", file=file) from None
    if len(content) > max_mib * _MIB:
        raise ScenarioError(_too_large(max_mib, large=large), file=file)
    return content


def check_is_file(path: str | Path) -> None:
    """Refuse what only looks like a file: reading it may never end, or may change something.

    Raises
    ------
    ScenarioError
        Missing, a directory, a device, a socket, or a pipe that is not one of ``/dev``.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise ScenarioError("cannot be read: no such file", file=str(path)) from None
    except ValueError as error:  # a zero byte in the name
        raise ScenarioError(f"cannot be read: {error}", file=str(path)) from None
    if stat.S_ISDIR(mode):
        raise ScenarioError("is a directory, a file is needed", file=str(path))
    given = stat.S_ISFIFO(mode) and Path(path).is_relative_to("/dev")
    if not given and not stat.S_ISREG(mode):
        raise ScenarioError("is a device or a pipe, a file is needed", file=str(path))


def read_json(path: str | Path) -> Any:
    """Read a large file as JSON, unpacked where its name ends in ``.gz``; see `read_text`.

    Raises
    ------
    ScenarioError
        See `read_text`; also if it is not JSON.
    """
    text = read_text(path, large=True)
    if text.count(",") + text.count("[") + text.count("{") > _large_mib() * _MIB // _BYTES_A_VALUE:
        raise ScenarioError("holds more values than any file of its kind", file=str(path))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"is not JSON: {error}", file=str(path)) from None


def csv_rows(text: str, *, file: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Parse a CSV row by row, empty ones included.

    Parameters
    ----------
    text : str
        Of the file.
    file : str, optional
        Its name, for messages.

    Yields
    ------
    int
        Line of the file at which the row ends, from 1.
    list of str
        Its cells as they stand.

    Raises
    ------
    ScenarioError
        If it is no CSV, or a cell (131,072 characters), a line or their number is too large to be meant.
    """
    if text.count("\n") > MAX_LINES:
        raise ScenarioError(f"has more than {MAX_LINES:,} lines", file=file)
    if len(text) > MAX_LINE:
        for number, line in enumerate(io.StringIO(text), start=1):
            if len(line) > MAX_LINE:
                raise ScenarioError(f"has more than {MAX_LINE:,} characters", file=file, key=f"line {number}")
    reader = csv.reader(io.StringIO(text, newline=""))
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            line = f"line {reader.line_num}"
            raise ScenarioError(f"the file is not CSV: {error}", file=file, key=line) from None
        yield reader.line_num, row


def read_frame(path: str | Path, *, as_text: bool = False) -> pd.DataFrame:
    """Read the table of a sweep: Parquet where its name says so, else CSV.

    Parameters
    ----------
    path : str or Path
        The file.
    as_text : bool
        Leave the cells of a CSV as they stand.

    Raises
    ------
    ScenarioError
        See `read_text`; also if it is no table, holds too many cells, or Parquet is not installed.
    """
    import pandas as pd

    content = read_bytes(path, large=True)
    try:
        if Path(path).suffix.lower() == ".parquet":
            about = importlib.import_module("pyarrow.parquet").read_metadata(io.BytesIO(content))
            if about.num_rows * about.num_columns > MAX_CELLS:
                raise ScenarioError(f"holds more than {MAX_CELLS:,} cells", file=str(path))
            return pd.read_parquet(io.BytesIO(content))
        return pd.read_csv(io.BytesIO(content), dtype=str if as_text else None)
    except ScenarioError:
        raise
    except Exception as error:  # what a damaged Parquet file raises is of many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ScenarioError(f"cannot be read as a table: {reason}", file=str(path)) from None


def _unpacked(stream: IO[bytes], most: int, file: str) -> bytes:
    """Unpack as much as is allowed and one byte more."""
    parts, num_bytes = [], 0
    with gzip.GzipFile(fileobj=stream) as packed:
        while num_bytes <= most and (part := packed.read(min(16 * _MIB, most + 1 - num_bytes))):
            parts.append(part)
            num_bytes += len(part)
            if num_bytes > max(16 * _MIB, MAX_PACKING * stream.tell()):
                raise ScenarioError(
                    f"unpacks to more than {MAX_PACKING} times its size, too much to be meant", file=file
                )
    return b"".join(parts)


def _large_mib() -> int:
    stated = os.environ.get(LIMIT_VARIABLE, "")
    if not stated:
        return LARGE_MIB
    if not stated.isascii() or not stated.isdecimal() or not 0 < len(stated) < 8 or int(stated) < 1:
        raise ScenarioError(f"found {stated[:20]!r}; a number of MiB from 1 on is needed", key=LIMIT_VARIABLE)
    return int(stated)


def _too_large(max_mib: int, *, large: bool) -> str:
    cure = f"; the environment variable {LIMIT_VARIABLE} sets another limit" if large else ""
    return f"is larger than {max_mib} MiB, too large to be meant{cure}"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
