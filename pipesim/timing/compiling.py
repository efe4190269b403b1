"""The one way to compile: options alike everywhere, machine code kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function of arrays and numbers at its first call, and keep the result on disk.

    Where no folder can be written to, each process compiles anew.
    """
    try:
        return cast(Function, numba.njit(cache=True, error_model="numpy")(function))
    except RuntimeError:
        return cast(Function, numba.njit(error_model="numpy")(function))
