"""Conditions of a run after reading: lengths of documents, jitter, failures and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Documents:
    """Lengths of the documents that sequences are packed with, lognormal."""

    mean_tokens: float
    sigma: float
    """Of the logarithm of a length."""
    split: Literal["sequence", "document"]
    """What context-parallel devices share alike: every sequence, or every document."""


@dataclass(frozen=True, slots=True)
class Jitter:
    """How much times differ: sigmas of lognormal factors with mean one, and ranks that are slow."""

    compute: float = 0.0
    """Of every computation, drawn each time."""
    devices: float = 0.0
    """Of every rank of every replica, drawn once a step."""
    network: float = 0.0
    """Of the bytes of every message between ranks."""
    slow_ranks: dict[int, float] = field(default_factory=dict)
    """Pipeline rank -> factor on all of its computations, in every replica."""
    documents: Documents | None = None
    """Of which sequences are packed; None: a sequence is one document."""
    experts: float = 0.0
    """Of the tokens of the busiest device that shares out experts, for each stage and microbatch; replicas
    wait for each other's tokens and have it in common."""

    @property
    def random(self) -> bool:
        """Whether anything is drawn, so that repeats differ."""
        return self.sets_replicas_apart or bool(self.experts)

    @property
    def sets_replicas_apart(self) -> bool:
        """Whether replicas differ."""
        return bool(self.compute or self.devices or self.network or self.documents is not None)

    def without_chance(self) -> Jitter | None:
        """Leave what is not drawn; None where that is nothing."""
        return Jitter(slow_ranks=self.slow_ranks) if self.slow_ranks else None


@dataclass(frozen=True, slots=True)
class Reliability:
    """Failures and checkpoints of a run of days."""

    mtbf_per_gpu_s: float
    """Mean time between failures of one device with its share of everything else."""
    restart_s: float
    """From a failure to training again, at the last checkpoint."""
    checkpoint_s: float
    """How long writing a checkpoint keeps training waiting."""
    interval_s: float | None
    """Training between checkpoints; None: the best."""
    days: float
    num_runs: int
    """Simulated runs of that many days."""
