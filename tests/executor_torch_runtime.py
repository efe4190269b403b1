"""Run as a script: torch's own pipeline runtime, two ranks, given our CSV; writes the gradients to a file.

``executor_torch_runtime.py OUT.npz NAME:CHUNKS:MICROBATCHES ...``
"""

import os
import sys
from datetime import timedelta

import executor_models
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from pipesim.executor import FactoryWorkload
from pipesim.executor.board import loopback_store
from pipesim.executor.models import build_model, build_stage, sample
from pipesim.executor.torch_runtime import torch_schedule
from pipesim.schedules import Shape, generate

WORKLOAD = FactoryWorkload("executor_models:mlp", dtype="float64")
RANKS = 2


def gradients(name: str, num_chunks: int, num_microbatches: int, rank: int) -> dict[str, np.ndarray]:
    schedule = generate(name, Shape(RANKS, num_chunks, num_microbatches))
    model = build_model(WORKLOAD)
    modules = {
        stage: torch.nn.ModuleList(build_stage(WORKLOAD, model, stage, schedule.num_stages))
        for stage in schedule.stages_of(rank)
    }
    stages = [
        PipelineStage(torch.nn.Sequential(*module), stage, schedule.num_stages, torch.device("cpu"))
        for stage, module in modules.items()
    ]
    runtime = torch_schedule(
        schedule, stages, loss_fn=lambda y, t: model.loss(y, t) / num_microbatches, scale_grads=False
    )
    samples = [sample(WORKLOAD, model, 0, 0, k) for k in range(num_microbatches)]
    inputs, targets = (torch.cat(tensors) for tensors in zip(*samples, strict=True))
    first, last = 0 in modules, schedule.num_stages - 1 in modules
    runtime.step(*((inputs,) if first else ()), **({"target": targets, "losses": []} if last else {}))
    return {
        f"{name}/{stage}.{parameter}": tensor.grad.numpy()
        for stage, module in modules.items()
        for parameter, tensor in module.named_parameters()
    }


def main() -> None:
    assert executor_models.WIDTH
    out, *wanted = sys.argv[1:]
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])
    reading, writing = os.pipe()
    rank = 1 if os.fork() == 0 else 0
    timeout = timedelta(seconds=30)
    if rank == 0:
        store = loopback_store(0, timeout)
        os.write(writing, store.port.to_bytes(4, "big"))
    else:
        port = int.from_bytes(os.read(reading, 4), "big")
        store = dist.TCPStore("127.0.0.1", port, RANKS, is_master=False, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timeout)
    found: dict[str, np.ndarray] = {}
    for text in wanted:
        name, chunks, microbatches = text.split(":")
        found |= gradients(name, int(chunks), int(microbatches), rank)
    np.savez(f"{out}.{rank}.npz", **found)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 1:
        os._exit(0)
    os.wait()


if __name__ == "__main__":
    main()
