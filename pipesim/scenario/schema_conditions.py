"""Sections checked and used as they are: ``network:``, ``jitter:``, ``reliability:`` and ``offload:``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from pipesim.scenario.quantities import (
    BytesPerS,
    Count,
    CountOrZero,
    FloatSeconds,
    NumberOrZero,
    Pieces,
    PositiveFloatSeconds,
    PositiveNumber,
    ShareOrZero,
    Spread,
)
from pipesim.scenario.schema_cluster import Keys, by_number


class NetworkRules(Keys):
    """``network:``, how traffic behaves."""

    mode: Literal["fair", "fifo", "ideal"] = Field(
        default="fair",
        description="how traffic shares wires: max-min fair, in order of arrival, as if each were alone",
    )
    p2p: Literal["overlapped", "send-blocking", "blocking"] = Field(
        default="overlapped", description="whether a rank computes while it sends and receives"
    )
    all_reduce: Literal["auto", "ring", "tree", "two-level", "in-network"] = Field(
        default="auto", description="algorithm of gradient all-reduces; auto: the fastest"
    )
    scatter_gather: bool | None = Field(
        default=None,
        description="whether each tensor device sends its share of a pipeline message, which the receivers "
        "gather; the efficiency set's by default (Megatron-LM before Megatron-core, DeepSpeed)",
    )

    @property
    def reduction(self) -> Literal["ring", "tree", "two-level", "in-network"] | None:
        """Algorithm of gradient all-reduces that is asked for; None: the fastest, as NCCL chooses."""
        return None if self.all_reduce == "auto" else self.all_reduce


class Documents(Keys):
    """``jitter.documents:``, lengths of the documents that sequences are packed with, lognormal."""

    mean_tokens: Count = Field(alias="mean", description="mean length of a document, in tokens")
    sigma: NumberOrZero = Field(
        default=1.0, description="sigma of the logarithm of lengths; 1 is long-tailed"
    )
    split: Literal["sequence", "document"] = Field(
        default="sequence",
        description="what context-parallel devices share alike: a sequence, whatever its documents, or every "
        "document",
    )


class Jitter(Keys):
    """``jitter:``, sigmas of lognormal factors with mean one, and ranks that are slow in every replica."""

    compute: Spread = Field(default=0.0, description="sigma of every computation, such as 0.02")
    devices: Spread = Field(default=0.0, description="sigma of every device, such as 0.02")
    network: Spread = Field(default=0.0, description="sigma of every message's bytes, such as 0.05")
    slow_ranks: Annotated[dict[CountOrZero, PositiveNumber], BeforeValidator(by_number)] = Field(
        default_factory=dict, description="rank: factor, such as {'3': 1.1}"
    )
    experts: Spread = Field(
        default=0.0,
        description="sigma of the busiest device's tokens, drawn by stage and microbatch, such as 0.1",
    )
    documents: Documents | None = Field(
        default=None, description="documents that sequences are packed with, which see only themselves"
    )

    @property
    def random(self) -> bool:
        """Whether anything is drawn, so that repeats differ."""
        return self.sets_replicas_apart or bool(self.experts)

    @property
    def sets_replicas_apart(self) -> bool:
        """Whether replicas differ; of the tokens for experts, they wait for each other's."""
        return bool(self.compute or self.devices or self.network or self.documents is not None)

    def without_chance(self) -> Jitter | None:
        """Leave what is not drawn; None where that is nothing."""
        return Jitter(slow_ranks=self.slow_ranks) if self.slow_ranks else None


class Reliability(Keys):
    """``reliability:``; by default Llama 3's failures (419 in 54 days of 16,384 H100), the rest assumed."""

    mtbf_per_gpu_s: PositiveFloatSeconds = Field(
        default=50_700 * 3600.0,
        alias="mtbf_per_gpu",
        description="time between failures of one device, such as 50700 h",
    )
    restart_s: FloatSeconds = Field(
        default=600.0, alias="restart", description="from a failure to training again, such as 10 min"
    )
    checkpoint_s: FloatSeconds = Field(
        default=60.0, alias="checkpoint", description="how long a checkpoint holds up training, such as 60 s"
    )
    interval_s: PositiveFloatSeconds | None = Field(
        default=None, alias="interval", description="training between checkpoints; else the best"
    )
    days: PositiveNumber = Field(default=30.0, description="length of the run")
    num_runs: Pieces = Field(default=200, alias="runs", description="runs to simulate")


class Offload(Keys):
    """``offload:``, what waits in the host's memory."""

    activations: ShareOrZero = Field(
        default=0.0, description="share of the layers' activations, from F to the backward"
    )
    optimizer: ShareOrZero = Field(
        default=0.0, description="share of the optimizer's state, which is updated through the link"
    )
    bytes_per_s: BytesPerS = Field(
        default=50e9,
        alias="bandwidth",
        description="of a device's link to its host, each direction; 50 GB/s (PCIe 5 x16) by default",
    )
