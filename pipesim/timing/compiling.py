"""The one way to compile: options alike everywhere, machine code kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from pipesim.errors import MissingPackageError

try:
    import numba
except ImportError:  # none for this Python yet, or not for this NumPy: what does not need it still runs
    numba = None  # type: ignore[assignment]

Function = TypeVar("Function", bound=Callable[..., Any])


def can_compile() -> bool:
    """Whether numba is there."""
    return numba is not None


def compiled(function: Function) -> Function:
    """Compile a function of arrays and numbers at its first call, and keep the result on disk.

    It makes no array, and may call compiled functions of its own folder. Where no folder can be written to,
    each process compiles anew. Without numba, the function raises `MissingPackageError` when it is called.
    """
    return _compiled(function)


def compiled_part(function: Function) -> Function:
    """Compile a function that only compiled ones call: no way in from Python, and kept with its callers only.

    It is compiled anew for each constant that it is given, and for each kind of number.
    """
    return _compiled(function, kept_on_disk=False, no_cpython_wrapper=True)


def _compiled(function: Function, kept_on_disk: bool = True, **more: bool) -> Function:
    if numba is None:
        return cast(Function, _missing)
    # All that takes time to compile and that nothing here needs: a way in from C, counting of references,
    # rewriting of expressions of whole arrays.
    options: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True, "no_rewrites": True, **more}
    options["_nrt"] = False
    if not kept_on_disk:
        return cast(Function, numba.njit(**options)(function))
    try:
        kept: Any = numba.njit(cache=True, **options)(function)
        # Numba looks for changes in the function's own file only, but what it calls is compiled into it.
        kept._cache._cache_file._source_stamp = _stamp(Path(function.__code__.co_filename).parent)
    except (AttributeError, RuntimeError):
        return cast(Function, numba.njit(**options)(function))
    return cast(Function, kept)


def _missing(*arguments: object) -> NoReturn:
    raise MissingPackageError("needs numba, which is not installed or does not load: pip install numba")


@cache
def _stamp(folder: Path) -> bytes:
    """Digest of all sources of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()
