"""Keys of ``jitter:`` and ``reliability:``: how a machine strays from its rates, and how often it fails."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from pipesim.scenario.quantities import (
    Count,
    CountOrZero,
    NumberOrZero,
    Pieces,
    PositiveNumber,
    PositiveSeconds,
    Seconds,
    Spread,
)
from pipesim.scenario.schema_cluster import Keys, by_number


class DocumentKeys(Keys):
    """``jitter.documents:``."""

    mean: Count = Field(description="mean length of a document, in tokens")
    sigma: NumberOrZero = Field(1.0, description="sigma of the logarithm of lengths; 1 is long-tailed")
    split: Literal["sequence", "document"] = Field(
        "sequence",
        description="what context-parallel devices share alike: a sequence, whatever its documents, or every "
        "document",
    )


class JitterKeys(Keys):
    """``jitter:``."""

    compute: Spread = Field(0.0, description="sigma of every computation, such as 0.02")
    devices: Spread = Field(0.0, description="sigma of every device, such as 0.02")
    network: Spread = Field(0.0, description="sigma of every message's bytes, such as 0.05")
    slow_ranks: Annotated[dict[CountOrZero, PositiveNumber], BeforeValidator(by_number)] = Field(
        default_factory=dict, description="rank: factor, such as {'3': 1.1}"
    )
    experts: Spread = Field(
        0.0,
        description="sigma of the busiest device's tokens, drawn by stage and microbatch, such as 0.1",
    )
    documents: DocumentKeys | None = Field(
        None, description="documents that sequences are packed with, which see only themselves"
    )


class ReliabilityKeys(Keys):
    """``reliability:``; by default Llama 3's failures (419 in 54 days of 16,384 H100), the rest assumed."""

    mtbf_per_gpu: PositiveSeconds = Field(
        default=50_700 * 3600.0, description="time between failures of one device, such as 50700 h"
    )
    restart: Seconds = Field(default=600.0, description="from a failure to training again, such as 10 min")
    checkpoint: Seconds = Field(
        default=60.0, description="how long a checkpoint holds up training, such as 60 s"
    )
    interval: PositiveSeconds | None = Field(
        default=None, description="training between checkpoints; else the best"
    )
    days: PositiveNumber = Field(default=30.0, description="length of the run")
    runs: Pieces = Field(default=200, description="runs to simulate")
