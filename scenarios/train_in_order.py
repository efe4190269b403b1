"""Train a small transformer with torch's pipelining in an order of pipesim's.

    torchrun --nproc-per-node 2 scenarios/train_in_order.py scenarios/two-ranks.yaml

The order is a scenario's, or a CSV as `pipesim tune` and `pipesim schedule export` write it. With
``--profile DIR`` each rank writes a trace of its last step, from which `pipesim tune SCENARIO DIR` measures
the stages. The text is made up: every token follows from the two before it, so the loss falls.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

import pipesim

VOCABULARY, WIDTH, HEADS, LENGTH, MICROBATCH = 64, 64, 4, 32, 4


class Block(nn.Module):
    """Causal attention and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Add both to what comes in, shape (batch, length, width)."""
        batch, length, _ = x.shape
        heads = self.qkv(self.before_attention(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.before_mlp(x))


def build_stage(stage: int, num_stages: int, num_layers: int) -> nn.Module:
    """Layers of one stage, as many as on the others; the first embeds, the last predicts."""
    first, last = (num_layers * at // num_stages for at in (stage, stage + 1))
    torch.manual_seed(stage)
    layers: list[nn.Module] = [nn.Embedding(VOCABULARY, WIDTH)] if stage == 0 else []
    layers += [Block() for _ in range(first, last)]
    if stage == num_stages - 1:
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)]
    return nn.Sequential(*layers)


def batch_of(step: int, num_microbatches: int) -> tuple[Tensor, Tensor]:
    """Draw tokens, the same on every rank, and those that follow them."""
    generator = torch.Generator().manual_seed(step)
    text = torch.randint(VOCABULARY, (num_microbatches * MICROBATCH, LENGTH + 1), generator=generator)
    for at in range(2, LENGTH + 1):
        text[:, at] = (text[:, at - 1] + text[:, at - 2]) % VOCABULARY
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of all tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    """Train as one rank of `torchrun`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("order", help="a scenario (.yaml), or a CSV of actions")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--profile", type=Path, help="where each rank writes a trace of its last step")
    asked = parser.parse_args()
    on_gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpus else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpus else torch.device("cpu")

    order = pipesim.load_order(asked.order)
    parts = {stage: build_stage(stage, order.num_stages, asked.layers) for stage in order.stages_of(rank)}
    stages = [PipelineStage(part.to(device), s, order.num_stages, device) for s, part in parts.items()]
    schedule = pipesim.torch_schedule(order, stages, loss_fn=loss_of)

    optimizer = torch.optim.AdamW((p for part in parts.values() for p in part.parameters()), lr=3e-3)
    profiler = torch.profiler.profile()
    for step in range(asked.steps):
        inputs, targets = (tensor.to(device) for tensor in batch_of(step, order.num_microbatches))
        losses: list[Tensor] = []
        if asked.profile is not None and step == asked.steps - 1:
            profiler.start()
        last = {"target": targets, "losses": losses} if order.num_stages - 1 in parts else {}
        schedule.step(*((inputs,) if 0 in parts else ()), **last)
        optimizer.step()
        optimizer.zero_grad()
        if losses:
            print(f"step {step}: loss {torch.stack(losses).mean().item():.4f}", flush=True)
    if asked.profile is not None:
        profiler.stop()
        asked.profile.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(asked.profile / f"rank{rank}.json"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
