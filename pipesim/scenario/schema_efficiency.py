"""Keys of ``efficiency:``, checked and used as they are: what software reaches, and how that is known."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pipesim.scenario.quantities import (
    Count,
    CountOrZero,
    FloatSeconds,
    NumberOrZero,
    PositiveNumber,
    Share,
)
from pipesim.scenario.schema_cluster import Keys, PeakKeys


class Domain(Keys):
    """One of ``efficiency.domains:``, as `pipesim calibrate --published` writes them: what rows cover."""

    experts: bool = Field(description="whether its models have experts")
    rows: CountOrZero = Field(description="number of measured rows")
    models: tuple[str, ...] = Field(strict=False, description="models, as width x MLP x heads")
    cards: tuple[str, ...] = Field(strict=False, description="accelerators")
    formats: tuple[str, ...] = Field(strict=False, description="formats of products")
    sharding: tuple[str, ...] = Field(strict=False, description="what replicas shared out")
    schedules: tuple[str, ...] = Field(strict=False, description="schedules")
    releases: tuple[str, ...] = Field(strict=False, description="releases of the software")
    kernels: tuple[str, ...] = Field((), strict=False, description="attention kernels; unknown by default")
    context: Count = Field(description="most context-parallel devices")
    expert: Count = Field(description="most expert-parallel devices")
    nodes: Count = Field(description="most nodes")
    seen: NumberOrZero = Field(description="half-width of the log of measured over predicted, seen models")
    unseen: NumberOrZero = Field(description="the same, models without rows")
    new_release: NumberOrZero = Field(description="added in quadrature for releases without rows")
    schedule_pairs: CountOrZero = Field(
        default=0, description="pairs of rows that differ in the schedule alone"
    )
    schedule_close: NumberOrZero = Field(
        default=0.0, description="half-width of their differences where close"
    )
    cut_pairs: CountOrZero = Field(default=0, description="pairs of rows that are cut in different ways")
    cut_close: NumberOrZero = Field(default=0.0, description="half-width of their differences where close")

    def with_own(self, own: Domain) -> Domain:
        """Domain of a set calibrated to runs of one's own: surer of their models, and of those alone."""
        more: dict[str, Any] = {
            name: tuple(sorted({*getattr(self, name), *getattr(own, name)}))
            for name in ("cards", "formats", "sharding", "schedules", "releases", "kernels")
        }
        for name in ("context", "expert", "nodes"):
            more[name] = max(getattr(self, name), getattr(own, name))
        more |= {
            "rows": own.rows,
            "models": own.models,
            "seen": own.seen,
            "unseen": max(self.unseen, own.seen),
        }
        return self.model_copy(update=more)

    def pairs_of(self, what: Literal["schedule", "cut"]) -> tuple[int, float]:
        """How many pairs differ in it, and the half-width of their differences where close."""
        if what == "schedule":
            return self.schedule_pairs, self.schedule_close
        return self.cut_pairs, self.cut_close


class Efficiency(Keys):
    """``efficiency:`` written out: how fast a generation of training software runs on an accelerator."""

    references = ("preset",)

    name: str = Field("efficiency", description="name for tables")
    gemm: Share = Field(description="share of the peak that matrix multiplications reach")
    gemm_fp8: Share = Field(description="the same of the fp8 peak")
    gemm_nvfp4: Share | None = Field(None, description="the same of the nvfp4 peak; gemm_fp8 by default")
    gemm_mxfp8: Share | None = Field(None, description="the same with mxfp8; gemm_fp8 by default")
    peak: PeakKeys | None = Field(None, description="rates that shares are of; the accelerator's by default")
    cards: dict[str, PositiveNumber] = Field(
        default_factory=dict, description="factor on compute rates by accelerator, 1 by default"
    )
    attention: Share = Field(description="share of the bf16 peak that attention reaches")
    attention_kernel: Literal["flash", "unfused"] = Field(description="kind of attention kernel")
    memory: Share = Field(description="share of memory bandwidth that memory-bound kernels reach")
    layer_overhead_s: FloatSeconds = Field(
        alias="layer_overhead", description="time of a layer's forward beside its counted work"
    )
    """The backward takes twice that."""
    tensor_collective_factor: NumberOrZero = Field(description="exposed share of tensor collectives")
    intra_node_bandwidth_factor: Share = Field(description="share of the intra-node link's rate reached")
    unaligned_gemm: Share = Field(description="factor where a matrix is not a multiple of 64")
    grouped_gemm: Share = Field(0.86, description="factor for the products of experts")
    """They run as one kernel of many small ones."""
    overlap_slowdown: NumberOrZero = Field(0.15, description="extra share of computing beside a collective")
    operand_traffic: bool = Field(False, description="whether products also move their operands")
    quantise_bytes: dict[str, NumberOrZero] = Field(
        default_factory=dict, description="format: bytes a value that bringing inputs into it moves"
    )
    sort_passes: NumberOrZero | None = Field(None, description="memory passes of sorting by expert")
    """Over 8 bytes a value of their rows; None: one, two where they are exchanged."""
    expert_layer_floor_s: FloatSeconds = Field(
        default=0.0, alias="expert_layer_floor", description="least time of a forward of a layer with experts"
    )
    """The host makes its launches one by one; a backward takes at least twice that, a step captured in full
    as CUDA graphs none."""
    gradient_overlap: bool = Field(False, description="whether gradients are reduced beside backwards")
    loss_kernel: Literal["unfused", "fused"] = Field("unfused", description="kind of loss kernel")
    weight_gradient_placeholders: bool = Field(False, description="a spare buffer for each weight shape")
    """In 16 bits, of each rank, beside the gradients."""
    scatter_gather: bool = Field(False, description="whether pipeline messages are cut among tensor devices")
    """The other numbers, fitted so, allow for that."""
    step_overhead_s: FloatSeconds = Field(
        default=0.0, alias="step_overhead", description="time of a step beside all that is modelled"
    )
    domains: tuple[Domain, ...] = Field((), strict=False, description="what was measured, how far off")
    release: str | None = Field(None, description="release of the software that is asked about")
    error_band: Share | None = Field(None, description="share within which nine of ten predictions lie")
    """In place of what the domains tell."""
    fitted_on: tuple[str, ...] = Field((), strict=False, description="accelerators it was fitted on")
    source: str = Field("the scenario", description="where the numbers are from")
    date: str | None = Field(None, description="when the source was read")
    notes: str | None = Field(None, description="remarks")

    @property
    def peak_flops(self) -> dict[str, float]:
        """Rates by format that the shares are of; empty: the accelerator's own peak."""
        return {} if self.peak is None else self.peak.rates

    def gemm_in(self, number_format: str) -> float:
        """Share of the peak of a number format that matrix multiplications reach."""
        narrow = {
            "fp8": self.gemm_fp8,
            "mxfp8": self.gemm_mxfp8 or self.gemm_fp8,
            "nvfp4": self.gemm_nvfp4 or self.gemm_fp8,
        }
        return narrow.get(number_format, self.gemm)
