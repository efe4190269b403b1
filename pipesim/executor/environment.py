"""What a run ran on, in words, so that a measurement can be judged later."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime

import torch

from pipesim.executor.run import MAX_CONNECTIONS


def environment(device: str, index: int) -> dict[str, str]:
    """Date, versions, processor and, on a GPU, what drives it.

    Parameters
    ----------
    device : {"cpu", "cuda", "emulated"}
        Where stages run.
    index : int
        Which GPU.
    """
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "threads_per_rank": str(torch.get_num_threads()),
        "transport": "gloo",
    }
    if device == "cuda":
        connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
        if connections is not None:
            facts[MAX_CONNECTIONS] = connections
        properties = torch.cuda.get_device_properties(index)
        facts |= {
            "gpu": properties.name,
            "gpu_memory": f"{properties.total_memory / 2**30:.1f} GiB",
            "multiprocessors": str(properties.multi_processor_count),
            "cuda": str(torch.version.cuda),
            "transport": "nccl " + ".".join(map(str, torch.cuda.nccl.version())),
        }
    return facts


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
