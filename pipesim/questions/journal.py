"""The journal of a sweep: one line a finished row, so that an interrupted sweep goes on where it stopped."""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.reading import check_is_file, read_bytes

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]

_KIND = "pipesim sweep"
_NO_JOURNAL = "is not the journal of a sweep; choose another output"


class Journal:
    """Rows of one sweep, on disk as soon as they are known.

    Parameters
    ----------
    path : Path
        The file; a new one is begun where there is none.
    digest : str
        Of all that decides the rows; a journal with another one is refused.
    num_rows : int
        Rows of the whole sweep.

    Raises
    ------
    ScenarioError
        If the file is no journal, belongs to another sweep, is damaged, cannot be
        written, or another process writes it.
    """

    def __init__(self, path: Path, digest: str, num_rows: int) -> None:
        self.path = path
        self.rows: dict[int, dict[str, Any]] = {}
        header = {"journal": _KIND, "digest": digest, "num_rows": num_rows}
        self._stream = _opened(path)
        try:
            whole_bytes = self._read(header)
            # A row that was being written when the sweep was stopped is run again.
            self._stream.truncate(whole_bytes)
            if not whole_bytes:
                self._write(header)
        except BaseException:
            self._stream.close()
            raise

    def append(self, index: int, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows[index] = row
        self._write({"row": index, "values": row, "check": _checksum(index, row)})

    def remove(self) -> None:
        """Delete the file: the sweep is complete and written elsewhere."""
        self.path.unlink()  # first, while nobody else can take it over
        self._stream.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def _write(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        try:
            while line:
                line = line[self._stream.write(line) :]
        except OSError as error:
            raise ScenarioError(f"cannot be written: {error.strerror}", file=str(self.path)) from None

    def _read(self, header: dict[str, Any]) -> int:
        """Take over the rows of a file and return its length up to the last whole line."""
        content = read_bytes(self.path, large=True)
        *lines, _ = content.split(b"\n")
        if not lines:
            if content and not _first_line(header).startswith(content):
                raise self._damaged(1)
            return 0
        entries = [self._parse(number, line) for number, line in enumerate(lines, start=1)]
        if entries[0].get("journal") != _KIND:
            raise self._damaged(1)
        if entries[0] != header:
            raise ScenarioError(
                "was begun by another sweep (other scenario, values, evaluator or version); finish "
                "that one, remove the file, or choose another output",
                file=str(self.path),
            )
        for number, entry in enumerate(entries[1:], start=2):
            index: Any = entry.get("row")
            values: Any = entry.get("values")
            whole = isinstance(values, dict) and entry.get("check") == _checksum(index, values)
            if not whole or type(index) is not int or not 0 <= index < header["num_rows"]:
                raise self._damaged(number)
            self.rows[index] = values
        return sum(len(line) + 1 for line in lines)

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise self._damaged(number) from None
        if not isinstance(entry, dict):
            raise self._damaged(number)
        return entry

    def _damaged(self, number: int) -> ScenarioError:
        message = f"line {number} is damaged; remove the file to start anew"
        return ScenarioError(message if number > 1 else _NO_JOURNAL, file=str(self.path))


def _opened(path: Path) -> FileIO:
    """Open a journal for this process alone, as long as it lives.

    Raises
    ------
    ScenarioError
        If another process has it, or it cannot be written.
    """
    while True:
        try:
            if path.exists():
                check_is_file(path)
            stream = FileIO(path, "a+")
        except OSError as error:
            raise ScenarioError(f"cannot be written: {error.strerror}", file=str(path)) from None
        if not _lock(stream):
            stream.close()
            raise ScenarioError(
                "another sweep is writing it; wait for its end, or choose another output", file=str(path)
            )
        # Whoever had the lock before may have finished and removed the file that was opened here.
        with suppress(OSError):
            if os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                return stream
        stream.close()


def _lock(stream: FileIO) -> bool:
    """Take the lock, which the system gives back however this process ends; False if another has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _checksum(index: Any, row: Any) -> int:
    """Of a row as it was written: a changed digit is still JSON."""
    return zlib.crc32(json.dumps([index, row]).encode())


def _first_line(header: dict[str, Any]) -> bytes:
    return json.dumps(header, allow_nan=False).encode()
