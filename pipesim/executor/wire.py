"""What ranks tell each other, as plain data: JSON and raw numbers, in which no code can travel."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pipesim.errors import ExecutionError
from pipesim.executor.job import RankResult
from pipesim.executor.stage import Boundary

Arrays = dict[str, npt.NDArray[Any]]
_GROUPS = ("columns", "gradients", "weights")
_SINGLE = ("step_s", "disturbed", "losses", "row_bytes")
_PAIRS = ("clock_offset_ns", "clock_bound_ns")
_KINDS = "biuf"
"""Truth values, integers and floats, in numpy's letters."""


def boundaries_to_json(boundaries: list[Boundary]) -> list[Any]:
    """Write the shapes of a stage's slices."""
    return [
        {"shape": list(each.shape), "dtype": str(each.dtype).removeprefix("torch.")} for each in boundaries
    ]


def boundaries_from_json(document: Any) -> list[Boundary]:
    """Read what `boundaries_to_json` wrote.

    Raises
    ------
    ExecutionError
        If it is no list of shapes.
    """
    try:
        return [_boundary(each["shape"], each["dtype"]) for each in document]
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ExecutionError(f"another rank's message is no list of shapes: {error}") from None


def _boundary(shape: Any, dtype: Any) -> Boundary:
    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype) or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"{shape} {dtype}")
    return Boundary(tuple(shape), kind)


def pack_result(result: RankResult) -> tuple[dict[str, Any], bytearray]:
    """Split a result into what JSON can say, with the layout of its arrays, and their bytes one by one."""
    arrays: Arrays = {name: getattr(result, name) for name in _SINGLE}
    for group in _GROUPS:
        arrays |= {f"{group}.{name}": array for name, array in getattr(result, group).items()}
    body = bytearray().join(array.tobytes() for array in arrays.values())
    document = {
        "process": result.process,
        "peak_activation_bytes": result.peak_activation_bytes,
        "peak_memory_bytes": result.peak_memory_bytes,
        "deferred_share": list(result.deferred_share.items()),
        **{name: list(getattr(result, name)) for name in _PAIRS},
        "environment": result.environment,
        "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()],
        "sha256": sha256(body).hexdigest(),
    }
    return document, body


def num_body_bytes(document: Any) -> int:
    """Bytes that a result's arrays have by its layout.

    Raises
    ------
    ExecutionError
        If it is no result.
    """
    try:
        return sum(_dtype(kind).itemsize * _count(shape) for _, kind, shape in document["arrays"])
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise ExecutionError(f"a rank's message is no result: {error}") from None


def unpack_result(document: Any, body: bytes | memoryview) -> RankResult:
    """Put together what `pack_result` split.

    Raises
    ------
    ExecutionError
        If it is no result, or not the one that was sent.
    """
    try:
        if sha256(body).hexdigest() != document["sha256"]:
            raise ValueError("it arrived other than it was sent")
        arrays: Arrays = {}
        start = 0
        for name, kind, shape in document["arrays"]:
            array = np.frombuffer(body, _dtype(kind), _count(shape), start).reshape(shape)
            arrays[name] = array
            start += array.nbytes
        fields: dict[str, Any] = {name: arrays[name] for name in _SINGLE}
        fields |= {name: _pair(document[name]) for name in _PAIRS}
        for group in _GROUPS:
            names = [name for name in arrays if name.startswith(f"{group}.")]
            fields[group] = {name.removeprefix(f"{group}."): arrays[name] for name in names}
        return RankResult(
            process=int(document["process"]),
            peak_activation_bytes=int(document["peak_activation_bytes"]),
            peak_memory_bytes=int(document["peak_memory_bytes"]),
            deferred_share={int(stage): float(share) for stage, share in document["deferred_share"]},
            environment={str(name): str(fact) for name, fact in document["environment"].items()},
            **fields,
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ExecutionError(f"a rank's message is no result: {error}") from None


def _dtype(kind: Any) -> np.dtype[Any]:
    dtype = np.dtype(str(kind))
    if dtype.kind not in _KINDS:
        raise ValueError(f"numbers of type {kind}")
    return dtype


def _count(shape: Any) -> int:
    count = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise ValueError(f"shape {shape}")
        count *= size
    return count


def _pair(numbers: Any) -> tuple[int, int]:
    before, after = numbers
    return int(before), int(after)
