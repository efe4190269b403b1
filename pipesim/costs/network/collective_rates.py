"""What a group of devices spread over nodes reaches in a collective, by algorithm.

Latencies and rates follow NCCL's own model (src/graph/tuning.cc of release 2.30): a ring pays a latency at
every step; a tree reaches about half the rate of its links but pays only for its depth; switches that add up
what passes them (NVLS, SHARP) take one pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipesim.costs.network.alpha_beta import Algorithm, Number, Ring, Shortcut
from pipesim.scenario.hardware import Switches

BASE_LATENCY_S = 8.4e-6
"""Ring and tree with the Simple protocol."""
_TREE_HOP_S, _TREE_NET_HOP_S = 4.0e-6, 14e-6
_TREE_RATE = 0.92
_SWITCH_NET_HOP_S = 20.9e-6
_SWITCH_TREE_RATE = 0.85
"""Of a ring over several nodes: on four nodes of H200, NVLSTree was measured 15 % slower than the ring that
NCCL chose (stas00/ml-engineering)."""
_MOST_NODES_WITHOUT_TREES = 4
"""So far rings were seen at every size: 4 nodes of H200 and of B200 take the latency of all their steps."""


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that take part in a collective, alike in all nodes.

    Parameters
    ----------
    num_members, num_nodes : int
        Devices in all, and the nodes they lie in.
    intra_bytes_per_s, inter_bytes_per_s : Number
        What a device's port reaches inside its node, and what the group's members of one node reach together
        between nodes.
    intra_hop_s, inter_hop_s : Number
        Latency of one step inside a node and between nodes.
    intra_ramp_s, inter_ramp_s : Number
        How slowly the rate rises with size where all members share a node, and otherwise; see `Ring`.
    switches : Switches, optional
        What adds up inside the nodes.
    far_s : Number
        What a pass over all members takes longer because some hops lead to another data centre.
    """

    num_members: int
    num_nodes: int
    intra_bytes_per_s: Number
    inter_bytes_per_s: Number
    intra_hop_s: Number
    inter_hop_s: Number
    intra_ramp_s: Number = 0
    inter_ramp_s: Number = 0
    switches: Switches | None = None
    far_s: Number = 0

    @property
    def members_per_node(self) -> int:
        """Members that share a node."""
        return math.ceil(self.num_members / self.num_nodes)

    @property
    def ring_bytes_per_s(self) -> Number:
        """What passes a device's port when the members form rings."""
        if self.num_nodes == 1:
            return self.intra_bytes_per_s
        return min(self.intra_bytes_per_s, self.inter_bytes_per_s)

    def ring(self, algorithm: Algorithm | None = None) -> Ring:
        """Ring of the group, with the other ways in which it can all-reduce.

        A step's latency is the mean over the ring's hops inside and between nodes.
        """
        num_steps = max(1, self.num_members - 1)
        num_inter = self.num_nodes - 1
        latency_s = num_inter * self.inter_hop_s + (num_steps - num_inter) * self.intra_hop_s + self.far_s
        found = (self._tree(algorithm), self._two_level(algorithm), self._in_switches(algorithm))
        return Ring(
            num_members=self.num_members,
            bytes_per_s=self.ring_bytes_per_s,
            step_latency_s=latency_s / num_steps,
            base_latency_s=BASE_LATENCY_S,
            ramp_s=self.intra_ramp_s if self.num_nodes == 1 else self.inter_ramp_s,
            shortcuts=tuple(shortcut for shortcut in found if shortcut is not None),
            algorithm=algorithm,
        )

    @property
    def _takes_trees(self) -> bool:
        return self.num_nodes > _MOST_NODES_WITHOUT_TREES

    def _tree(self, algorithm: Algorithm | None) -> Shortcut | None:
        """Double binary tree over the nodes, a chain inside each; all bytes go up and down."""
        if self.num_nodes == 1 or not (self._takes_trees or algorithm == "tree"):
            return None
        latency_s = (self.members_per_node - 1) * _TREE_HOP_S
        latency_s += math.log2(self.num_nodes) * max(_TREE_NET_HOP_S, self.inter_hop_s) + self.far_s
        share = (self.num_members - 1) / self.num_members
        return Shortcut("tree", BASE_LATENCY_S + 2 * latency_s, share * _TREE_RATE * self.ring_bytes_per_s)

    def _two_level(self, algorithm: Algorithm | None) -> Shortcut | None:
        """Reduce-scatter in the nodes, all-reduce of the shares between them, all-gather, one by one.

        Not an algorithm of NCCL, so that it runs only where it is asked for.
        """
        g, k = self.members_per_node, self.num_nodes
        if k == 1 or algorithm != "two-level":
            return None
        latency_s = 2 * ((g - 1) * self.intra_hop_s + (k - 1) * self.inter_hop_s + self.far_s)
        seconds_per_byte = (g - 1) / g / self.intra_bytes_per_s + (k - 1) / k / self.inter_bytes_per_s
        share = (self.num_members - 1) / self.num_members
        return Shortcut("two-level", BASE_LATENCY_S + latency_s, share / seconds_per_byte)

    def _in_switches(self, algorithm: Algorithm | None) -> Shortcut | None:
        """NVLS in one node; over several, with a tree between the nodes."""
        switches = self.switches
        if switches is None or self.members_per_node < switches.min_members:
            return None
        if self.num_nodes > 1 and not (self._takes_trees or algorithm == "in-network"):
            return None
        latency_s, rate = BASE_LATENCY_S + switches.latency_s, switches.bytes_per_s
        if self.num_nodes > 1:
            latency_s += 2 * (
                math.log2(self.num_nodes) * max(_SWITCH_NET_HOP_S, self.inter_hop_s) + self.far_s
            )
            rate = min(rate, _SWITCH_TREE_RATE * self.ring_bytes_per_s)
        return Shortcut("in-network", latency_s, rate)
