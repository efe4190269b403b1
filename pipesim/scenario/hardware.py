"""Hardware after reading: devices, links and the cluster of them, in SI units."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipesim.scenario.schema_cluster import Accelerator as Accelerator
from pipesim.scenario.schema_cluster import Link as Link
from pipesim.scenario.schema_cluster import SiteLink as SiteLink
from pipesim.scenario.schema_cluster import Switches as Switches

PEAK_OF = {"mxfp8": "fp8"}
"""Formats that the units of another one compute."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Alike nodes in a row, in one data centre."""

    num_nodes: int
    accelerator: Accelerator
    site: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of accelerators, alike unless groups say otherwise: an intra-node and an inter-node network."""

    accelerator: Accelerator
    num_nodes: int
    gpus_per_node: int
    intra_node: Link
    inter_node: Link
    nics_per_node: int = 0
    """Network cards of a node; 0: one for every device."""
    paired: bool = False
    """Devices of a node are wired pair by pair, so that a pair has a share of a port only."""
    nodes_per_switch: int | None = None
    """Nodes on one leaf switch; None: nothing between nodes blocks."""
    oversubscription: float = 1.0
    """Down-links of a leaf switch over its up-links."""
    other_accelerators: dict[int, Accelerator] = field(default_factory=dict)
    """Pipeline rank -> what its devices are, where they are not the usual ones."""
    num_numbered_ranks: int = 0
    """Pipeline ranks of the cut that `other_accelerators` numbers, where the scenario's own is left open."""
    degraded_nodes: dict[int, float] = field(default_factory=dict)
    """Node -> what is left of the bandwidth of its cards."""
    rails: bool = False
    """Card i of the nodes of a leaf has a leaf switch of its own."""

    groups: tuple[NodeGroup, ...] = ()
    """Nodes that are unlike, in order; empty where all are alike."""
    site_links: dict[tuple[int, int], SiteLink] = field(default_factory=dict)
    """By the two sites, the smaller number first; empty where all nodes stand in one."""

    @property
    def site_of_node(self) -> tuple[int, ...]:
        """Data centre of each node; empty where there is one."""
        if not self.site_links:
            return ()
        return tuple(group.site for group in self.groups for _ in range(group.num_nodes))

    def accelerator_of_device(self) -> list[Accelerator]:
        """Accelerator of each device of unlike nodes."""
        each = self.gpus_per_node
        return [group.accelerator for group in self.groups for _ in range(group.num_nodes * each)]

    @property
    def num_gpus(self) -> int:
        """Devices in all."""
        return self.num_nodes * self.gpus_per_node

    def accelerators(self, num_ranks: int) -> list[Accelerator]:
        """Accelerator of each pipeline rank."""
        return [self.other_accelerators.get(rank, self.accelerator) for rank in range(num_ranks)]

    def device_names(self, num_ranks: int) -> list[str]:
        """Name of the accelerator of each device of unlike nodes, else of each pipeline rank."""
        unlike = self.accelerator_of_device()
        return [one.name for one in unlike or self.accelerators(self.num_numbered_ranks or num_ranks)]

    def device_words(self, num_ranks: int) -> str:
        """Devices by name with their number, as in ``2 h100-sxm and 2 a100-sxm-80``."""
        names = self.device_names(num_ranks)
        each = self.num_gpus // len(names)
        return " and ".join(f"{each * names.count(name)} {name}" for name in dict.fromkeys(names))

    @property
    def plain(self) -> bool:
        """Whether every device has a whole port and a whole card, and no switch blocks."""
        whole = self.nics_per_node == self.gpus_per_node and not self.degraded_nodes
        return whole and not self.paired and not self.blocks and not self.site_links

    @property
    def blocks(self) -> bool:
        """Whether the nodes of a leaf switch can send more than its up-links carry."""
        return self.nodes_per_switch is not None and self.oversubscription > 1

    def __post_init__(self) -> None:
        if not self.nics_per_node:
            object.__setattr__(self, "nics_per_node", self.gpus_per_node)
