"""The one way to compile: options alike everywhere, machine code kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from pipesim.errors import MissingPackageError

try:
    import numba
except ImportError:  # none for this Python yet, or not for this NumPy: what does not need it still runs
    numba = None  # type: ignore[assignment]

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function of arrays and numbers at its first call, and keep the result on disk.

    Where no folder can be written to, each process compiles anew. Without numba, the function raises
    `MissingPackageError` when it is called.
    """
    if numba is None:
        return cast(Function, _missing)
    try:
        return cast(Function, numba.njit(cache=True, error_model="numpy")(function))
    except RuntimeError:
        return cast(Function, numba.njit(error_model="numpy")(function))


def _missing(*arguments: object) -> NoReturn:
    raise MissingPackageError("needs numba, which is not installed or does not load: pip install numba")
