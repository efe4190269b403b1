"""Keys of a scenario's ``cluster:`` section, and what all keys have in common."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from pipesim.scenario.quantities import (
    BytesPerS,
    Count,
    CountOrZero,
    FloatSeconds,
    FlopsPerS,
    NumberOrZero,
    PositiveBytes,
    PositiveNumber,
    Share,
)


class Keys(BaseModel):
    """A mapping that allows its own keys only and converts nothing silently."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    references: ClassVar[tuple[str, ...]] = ()
    """Keys that `expand` replaces by fields: legal in a file, gone before validation."""


def by_number(value: object) -> object:
    """Read the names of numbered things, which YAML has as texts."""
    if not isinstance(value, dict):
        return value
    numbered: dict[Any, Any] = {}
    for key, item in value.items():
        number = int(key) if isinstance(key, str) and key.isdecimal() else key
        if number in numbered:
            raise PydanticCustomError("choice", "number {n} is stated twice", {"n": number})
        numbered[number] = item
    return numbered


class PeakKeys(Keys):
    """Dense peak rates by number format."""

    bf16: FlopsPerS | None = Field(None, description="dense rate in bf16")
    fp16: FlopsPerS | None = Field(None, description="dense rate in fp16")
    fp8: FlopsPerS | None = Field(None, description="dense rate in fp8")
    nvfp4: FlopsPerS | None = Field(None, description="dense rate in nvfp4")
    tf32: FlopsPerS | None = Field(None, description="dense rate in tf32")
    fp32: FlopsPerS | None = Field(None, description="dense rate in fp32")

    @property
    def rates(self) -> dict[str, float]:
        """Rates that are stated, by format."""
        return {name: rate for name, rate in self if rate is not None}


class Accelerator(Keys):
    """``cluster.accelerator:`` written out, one device."""

    references = ("preset",)

    name: str = Field("accelerator", description="name for tables")
    peak: PeakKeys = Field(description="dense peak rates, such as {bf16: 312 TFLOP/s}")
    memory_bytes: PositiveBytes = Field(alias="memory", description="memory of one device, such as 80 GB")
    memory_bytes_per_s: BytesPerS = Field(
        alias="memory_bandwidth", description="memory bandwidth, such as 2039 GB/s"
    )
    tdp_w: PositiveNumber | None = Field(None, description="power limit in watts")
    price_usd_per_hour: NumberOrZero | None = Field(None, description="rent of one device")
    intra_node: str | None = Field(None, description="link preset usual inside a node")
    efficiency: str | None = Field(None, description="efficiency preset to start from")
    source: str = Field("the scenario", description="where the figures are from")
    date: str = Field("", description="when the source was read")
    notes: str | None = Field(None, description="remarks")

    @property
    def peak_flops(self) -> dict[str, float]:
        """Dense peak by format."""
        return self.peak.rates


class Switches(Keys):
    """``in_network:`` of a link whose switches add up what passes them."""

    bytes_per_s: BytesPerS = Field(
        alias="bandwidth", description="rate of an all-reduce as nccl-tests' busbw, such as 480 GB/s"
    )
    latency_s: FloatSeconds = Field(alias="latency", description="latency of one all-reduce, such as 25 us")
    min_members: Count = Field(2, description="fewest devices for which it is used")


class Link(Keys):
    """``cluster.intra_node:`` or ``cluster.inter_node:`` written out, one direction of one device's port."""

    references = ("preset",)

    name: str = Field("link", description="name for tables")
    nominal_bytes_per_s: BytesPerS = Field(
        alias="bandwidth", description="nominal rate of one direction, such as 400 Gbit/s"
    )
    efficiency: Share = Field(1.0, description="share of the nominal rate that long messages reach")
    p2p_latency_s: FloatSeconds = Field(
        alias="p2p_latency", description="latency of a point-to-point message, such as 20 us"
    )
    hop_latency_s: FloatSeconds = Field(
        alias="hop_latency", description="latency of one step of a collective, such as 14 us"
    )
    ramp_s: FloatSeconds = Field(
        default=0.0,
        alias="ramp",
        description="how slowly a collective's rate rises with size, such as 25 us",
    )
    """See `pipesim.costs.network.alpha_beta.Ring`."""
    switches: Switches | None = Field(
        default=None, alias="in_network", description="switches that add up what passes them"
    )
    source: str = Field("the scenario", description="where the figures are from")
    date: str = Field("", description="when the source was read")
    notes: str | None = Field(None, description="remarks")

    @property
    def bytes_per_s(self) -> float:
        """What a long point-to-point transfer or a large ring reaches."""
        return self.nominal_bytes_per_s * self.efficiency


class NodeGroupKeys(Keys):
    """One of ``cluster.groups:``, alike nodes in a row."""

    num_nodes: Count = Field(description="nodes of the group, numbered behind those of the group before")
    accelerator: Accelerator = Field(description="what they have: a preset's name or its fields")
    site: str | None = Field(None, description="data centre that they stand in, where there are several")


class SiteLink(Keys):
    """One of ``cluster.site_links:``, all that connects two data centres."""

    between: list[str] = Field(description="the two sites, such as [oslo, rome]")
    latency_s: FloatSeconds = Field(alias="latency", description="latency of a message, such as 40 ms")
    bytes_per_s: BytesPerS = Field(
        alias="bandwidth",
        description="rate of one direction for all devices together, such as 100 Gbit/s",
    )
    usd_per_gb: NumberOrZero = Field(default=0.0, description="price of what is sent, in USD for each GB")

    @property
    def usd_per_byte(self) -> float:
        """Price of a byte."""
        return self.usd_per_gb / 1e9


class ClusterKeys(Keys):
    """``cluster:``."""

    references = ("machine",)

    accelerator: Accelerator = Field(description="a preset's name (`pipesim presets`) or its fields")
    num_nodes: Count = Field(description="number of nodes")
    gpus_per_node: Count = Field(8, description="devices of one node")
    other_accelerators: Annotated[dict[CountOrZero, Accelerator], BeforeValidator(by_number)] = Field(
        default_factory=dict, description="rank: accelerator, such as {'3': a100-sxm-80}"
    )
    groups: list[NodeGroupKeys] = Field(
        default_factory=list,
        description="unlike nodes, in place of accelerator and num_nodes: those of each group in a row",
    )
    site_links: list[SiteLink] = Field(
        default_factory=list, description="links between the data centres that groups name"
    )
    intra_node: Link = Field(
        description="link inside a node: a preset's name or its fields; the accelerator's preset has one"
    )
    inter_node: Link | None = Field(None, description="link between nodes, needed if there are several")
    nics_per_node: Count | None = Field(None, description="network cards of a node; one a device by default")
    intra_wiring: Literal["switch", "pairs"] = Field("switch", description="how devices of a node are wired")
    nodes_per_switch: Count | None = Field(None, description="nodes on one leaf switch")
    oversubscription: PositiveNumber | None = Field(
        None, description="down-links of a leaf switch over its up-links"
    )
    rails: bool | None = Field(None, description="whether card i of the nodes has a leaf of its own")
    degraded_nodes: Annotated[dict[CountOrZero, Share], BeforeValidator(by_number)] = Field(
        default_factory=dict, description="node: what is left of its cards' bandwidth, such as {'3': 0.5}"
    )
