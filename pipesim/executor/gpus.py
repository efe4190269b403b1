"""Which GPU a rank has, whether there is one at all, and how one GPU is shared out to several ranks."""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

import torch

from pipesim.errors import ExecutionError
from pipesim.executor.streams import CudaStream

_BLOCK = 8
"""Multiprocessors by which partitions grow on compute capability 9 and later."""


def require_gpus() -> int:
    """Count the GPUs that torch finds; nothing is started on them.

    Raises
    ------
    ExecutionError
        If torch is built for CPUs, or there is none.
    """
    if torch.version.cuda is None:
        raise ExecutionError(
            f"torch {torch.__version__} is built without CUDA; for --device cuda install a build with it "
            f"(https://pytorch.org/get-started/locally)"
        )
    count = torch.cuda.device_count()
    if not count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        where = f" with CUDA_VISIBLE_DEVICES={visible}" if visible is not None else ""
        raise ExecutionError(f"torch {torch.__version__} finds no GPU{where}")
    return count


def choose_gpu(local_index: int, num_visible: int) -> int:
    """Pick the GPU of a process, the `local_index`-th of its machine.

    A launcher may show every process its own GPU alone (SLURM does when it binds them); that one is taken.

    Raises
    ------
    ExecutionError
        If there are several, and fewer than processes.
    """
    if local_index < num_visible:
        return local_index
    if num_visible == 1:
        return 0
    raise ExecutionError(
        f"needs GPU {local_index}, this process sees {num_visible}; one GPU a rank is needed, or one that "
        f"all ranks share in one process"
    )


def refuse_shared(gpus: list[str]) -> None:
    """Refuse processes that have the same GPU: NCCL would name neither.

    Parameters
    ----------
    gpus : list of str
        What tells a GPU from all others, process by process.

    Raises
    ------
    ExecutionError
        Naming two that share one.
    """
    for process, gpu in enumerate(gpus):
        first = gpus.index(gpu)
        if first < process:
            raise ExecutionError(
                f"processes {first} and {process} have the same GPU; one GPU a rank is needed "
                f"(see CUDA_VISIBLE_DEVICES and the launcher's binding)"
            )


@cache
def partitioned_streams(num_lanes: int) -> tuple[tuple[CudaStream, ...], str]:
    """Give each lane a stream on a part of the current GPU's multiprocessors that no other lane has.

    All parts come from one split of the device: a split that is made anew for each lane gives every lane the
    same part. Where ``cuda.bindings`` (of pip's cuda-python) or the driver cannot do it, streams are plain.

    Returns
    -------
    streams : tuple of CudaStream
        They live as long as the process, as do their parts.
    words : str
        What the lanes are.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.synchronize(device)
    num_all = torch.cuda.get_device_properties(device).multi_processor_count
    size = num_all // num_lanes // _BLOCK * _BLOCK
    try:
        driver: Any = importlib.import_module("cuda.bindings.driver")
        if not size:
            raise RuntimeError(f"{num_all} multiprocessors are too few for {num_lanes} parts")
        streams = [
            torch.cuda.ExternalStream(s, device=device) for s in _split(driver, device, num_lanes, size)
        ]
    except (ImportError, AttributeError, RuntimeError) as error:
        plain = tuple(CudaStream(torch.cuda.Stream(device), device) for _ in range(num_lanes))
        return plain, f"plain streams, not partitioned: {type(error).__name__}: {error}"
    words = f"partitions of {size} of {num_all} multiprocessors"
    return tuple(CudaStream(stream, device) for stream in streams), words


def _split(driver: Any, device: torch.device, num_lanes: int, size: int) -> list[int]:
    """Addresses of streams of green contexts, from one split of all multiprocessors.

    Source: CUDA driver API, section Green Contexts (docs.nvidia.com/cuda/cuda-driver-api).
    """

    def call(name: str, *arguments: Any) -> Any:
        status, *results = getattr(driver, name)(*arguments)
        if int(status):
            raise RuntimeError(f"{name}: {status}")
        return results[0] if len(results) == 1 else results

    number = call("cuDeviceGet", device.index)
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    everything = call("cuDeviceGetDevResource", number, kind)
    parts, count, _ = call("cuDevSmResourceSplitByCount", num_lanes, everything, 0, size)
    if count < num_lanes:
        raise RuntimeError(f"the driver made {count} parts of {num_lanes}")
    streams = []
    for part in parts[:num_lanes]:
        description = call("cuDevResourceGenerateDesc", [part], 1)
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        context = call("cuGreenCtxCreate", description, number, flags)
        non_blocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        streams.append(int(call("cuGreenCtxStreamCreate", context, non_blocking, 0)))
    return streams
