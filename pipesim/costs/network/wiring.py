"""How devices are wired: ports inside nodes, network cards, switches; what a transfer crosses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise, permutations
from math import lcm

from pipesim.costs.network.alpha_beta import Number
from pipesim.costs.network.fabric import Demand, Wire


@dataclass(frozen=True, slots=True)
class Wiring:
    """Alike nodes of devices; everything is full duplex, one wire a direction.

    Parameters
    ----------
    gpus_per_node : int
        Devices of one node, numbered node after node.
    port_bytes_per_s, port_latency_s : Number
        One device's port inside its node, and the latency of a message through it.
    nic_bytes_per_s, nic_latency_s : Number
        One network card, and the latency of a message between nodes.
    nics_per_node : int
        Cards of a node; neighbouring devices share one where there are fewer than devices.
    paired : bool
        Devices of a node are wired pair by pair, so that a port is shared out evenly over the others;
        otherwise a switch lets two devices have their whole ports.
    nodes_per_switch : int, optional
        Nodes on one leaf switch; None: one switch that blocks nothing.
    oversubscription : Number
        Down-links of a leaf switch over its up-links.
    rails : bool
        Card i of every node on the leaf has a leaf switch of its own.
    degraded : mapping of int to Number
        What is left of the bandwidth of a node's cards.
    site_of_node : tuple of int
        Data centre of each node; empty where there is one.
    site_bytes_per_s, site_latency_s : mapping of (int, int) to Number
        One direction of what connects two data centres, and a message's latency; the smaller number first.
    """

    gpus_per_node: int
    port_bytes_per_s: Number
    port_latency_s: Number
    nic_bytes_per_s: Number
    nic_latency_s: Number
    nics_per_node: int
    paired: bool = False
    nodes_per_switch: int | None = None
    oversubscription: Number = 1
    rails: bool = False
    degraded: Mapping[int, Number] = field(default_factory=dict)
    site_of_node: tuple[int, ...] = ()
    site_bytes_per_s: Mapping[tuple[int, int], Number] = field(default_factory=dict)
    site_latency_s: Mapping[tuple[int, int], Number] = field(default_factory=dict)

    @property
    def gpus_per_leaf(self) -> int:
        """Devices on one leaf switch, or of one node where a single switch blocks nothing."""
        return self.gpus_per_node * (self.nodes_per_switch or 1)

    def without_rates(self) -> Wiring:
        """Leave what decides which wires are crossed, and with what latency."""
        return replace(
            self,
            port_bytes_per_s=1,
            nic_bytes_per_s=1,
            oversubscription=1,
            degraded={},
            site_bytes_per_s={},
        )

    def sites_of(self, src: int, dst: int) -> tuple[int, int] | None:
        """Give the data centres of two devices; None where they are one."""
        if not self.site_of_node:
            return None
        sites = self.site_of_node[self.node_of(src)], self.site_of_node[self.node_of(dst)]
        return None if sites[0] == sites[1] else sites

    def node_of(self, device: int) -> int:
        """Node of a device."""
        return device // self.gpus_per_node

    def path(self, src: int, dst: int) -> tuple[Wire, ...]:
        """Wires that a message from one device to another crosses; none to itself."""
        if src == dst:
            return ()
        if self.node_of(src) == self.node_of(dst):
            return (("pair", src, dst),) if self.paired else (("port out", src, 0), ("port in", dst, 0))
        src_card, dst_card = self._card(src), self._card(dst)
        src_leaf, dst_leaf = self._leaf(*src_card), self._leaf(*dst_card)
        between: tuple[Wire, ...] = ()
        if src_leaf != dst_leaf:
            between = (("switch up", *src_leaf), ("switch down", *dst_leaf))
        sites = self.sites_of(src, dst)
        if sites is not None:
            between = (*between[:1], ("site", *sites), *between[1:])
        return (("card out", *src_card), *between, ("card in", *dst_card))

    def latency_s(self, src: int, dst: int) -> Number:
        """Latency of a message from one device to another."""
        sites = self.sites_of(src, dst)
        if sites is not None:
            return self.site_latency_s[min(sites), max(sites)]
        return self.port_latency_s if self.node_of(src) == self.node_of(dst) else self.nic_latency_s

    def bytes_per_s(self, wire: Wire) -> Number:
        """Capacity of a wire."""
        what, where, other = wire
        if what == "site":
            return self.site_bytes_per_s[min(where, other), max(where, other)]
        if what == "pair":
            return self.port_bytes_per_s / (self.gpus_per_node - 1)
        if what.startswith("port"):
            return self.port_bytes_per_s
        if what.startswith("card"):
            return self.nic_bytes_per_s * self.degraded.get(where, 1)
        cards = (self.nodes_per_switch or 1) * (1 if self.rails else self.nics_per_node)
        return cards * self.nic_bytes_per_s / self.oversubscription

    def _card(self, device: int) -> tuple[int, int]:
        node, local = divmod(device, self.gpus_per_node)
        return node, local * self.nics_per_node // self.gpus_per_node

    def _leaf(self, node: int, card: int) -> tuple[int, int]:
        if self.nodes_per_switch is None:
            return 0, 0
        return node // self.nodes_per_switch, card if self.rails else 0

    def transfer(self, pairs: Iterable[tuple[int, int]]) -> Demand:
        """Messages of like size between devices, side by side, as one flow of the bytes of one of them."""
        loads: dict[Wire, Number] = defaultdict(int)
        latency_s: Number = 0
        for src, dst in pairs:
            latency_s = max(latency_s, self.latency_s(src, dst))
            for wire in self.path(src, dst):
                loads[wire] += 1
        return Demand(latency_s, dict(loads))

    def rings(self, groups: Iterable[Sequence[int]]) -> Demand:
        """Ring collectives of groups of devices, side by side, as one flow of the bytes of one device's port.

        A group with k members in every node runs k rings over as many cards, each with a k-th of the bytes.
        Its latency is the collective's own business.
        """
        weight = 1
        hops: list[tuple[int, int, int]] = []
        for group in groups:
            num_rings, of_group = self._ring_hops(group)
            weight = max(weight, num_rings)
            hops += of_group
        # Counted in whole parts of a byte, for fractions are slow.
        unit = lcm(*{parts for _, _, parts in hops})
        counts: dict[Wire, int] = defaultdict(int)
        for src, dst, parts in hops:
            for wire in self.path(src, dst):
                counts[wire] += unit // parts
        loads = {count: _whole_if_it_is(Fraction(count, unit)) for count in set(counts.values())}
        return Demand(0, {wire: loads[count] for wire, count in counts.items()}, weight)

    def exchanges(self, groups: Iterable[Sequence[int]], inside_share: float) -> Demand:
        """All-to-all exchanges of groups, side by side, as one flow of the bytes that a device sends.

        To other nodes if its group has some, else inside its own. What it sends to another node goes through
        its card to the device there that has its place, and from there on to the others.

        Parameters
        ----------
        groups : iterable of sequence of int
            Devices of each group.
        inside_share : float
            Bytes that each device sends, and gets, inside its node for one of those.
        """
        counts: dict[tuple[Wire, int], int] = defaultdict(int)
        inside: dict[Wire, Number] = {}
        for group in groups:
            nodes = self._by_node(group)
            for members, others in permutations(nodes, 2):
                for place, src in enumerate(members):
                    for wire in self.path(src, others[place % len(others)]):
                        counts[wire, len(nodes) - 1] += 1
            for members in nodes if inside_share else ():
                each = inside_share / (len(members) - 1) if self.paired and len(members) > 1 else inside_share
                for src, dst in permutations(members, 2):
                    inside |= dict.fromkeys(self.path(src, dst), each)
        loads: dict[Wire, Number] = defaultdict(int, inside)
        for (wire, parts), count in counts.items():
            loads[wire] += _whole_if_it_is(Fraction(count, parts))
        return Demand(0, dict(loads))

    def _by_node(self, group: Sequence[int]) -> list[list[int]]:
        by_node: dict[int, list[int]] = defaultdict(list)
        for device in sorted(group):
            by_node[self.node_of(device)].append(device)
        return list(by_node.values())

    def _ring_hops(self, group: Sequence[int]) -> tuple[int, list[tuple[int, int, int]]]:
        """How many rings a group forms between nodes; its hops, and into how many parts the bytes are split.

        Where devices are wired pair by pair, as many rings as there are pairs at a device use them all.
        """
        nodes = self._by_node(group)
        num_rings = 1 if len(nodes) == 1 else min(map(len, nodes))
        hops: list[tuple[int, int, int]] = []
        for members, following in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
            if self.paired:
                hops += [(src, dst, len(members) - 1) for src, dst in permutations(members, 2)]
            else:
                hops += [(src, dst, 1) for src, dst in pairwise(members)]
            if len(nodes) > 1:
                between = zip(members[:num_rings], following[:num_rings], strict=True)
                hops += [(src, dst, num_rings) for src, dst in between]
            elif len(members) > 1 and not self.paired:
                hops.append((members[-1], members[0], 1))
        return num_rings, hops

    def alone_bytes_per_s(self, demand: Demand) -> Number | None:
        """Rate of a flow that has all wires to itself; None where it crosses none."""
        return self.slowest(demand.loads.items())

    def slowest(self, loads: Iterable[tuple[Wire, Number]]) -> Number | None:
        """Least rate at which wires let a flow pass that loads them; None without wires."""
        # Most wires are like others.
        alike = {
            (wire[0], wire[1:] if wire[0] == "site" else wire[1] if self.degraded else 0, load): wire
            for wire, load in loads
        }
        return min((self.bytes_per_s(wire) / load for (_, _, load), wire in alike.items()), default=None)


def _whole_if_it_is(load: Fraction) -> Number:
    return load.numerator if load.denominator == 1 else load
