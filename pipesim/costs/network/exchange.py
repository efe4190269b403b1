"""Tokens on their way to experts and back: a copy for every expert, or one for each place that needs it."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from pipesim.scenario.resolved import Experts


@dataclass(frozen=True, slots=True)
class Exchange:
    """A group of devices that exchange all to all.

    Parameters
    ----------
    num_members : int
        Devices of the group.
    num_together : int
        Of them in one node, where they are fewest.
    intra_bytes_per_s, inter_bytes_per_s : float
        What one device sends inside its node and, through its own port, to other nodes; both at a time.
    latency_s : float
        Of one exchange, launch included.
    one_copy : bool
        A token goes once to each node, and from there once to each device, that has experts of its own; else
        a copy goes to each expert.
    hidden : float
        Share that runs beside other computations.
    """

    num_members: int
    num_together: int
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    latency_s: float
    one_copy: bool = False
    hidden: float = 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes that each device of a group sends in an exchange, to other nodes and inside its own."""

    to_others: float
    inside: float

    def scaled(self, factor: float) -> Sent:
        """Give a part or a multiple of it."""
        return Sent(factor * self.to_others, factor * self.inside)

    def seconds(self, group: Exchange) -> float:
        """Seconds on an idle network; both kinds of wire carry at a time."""
        return group.latency_s + max(
            self.to_others / group.inter_bytes_per_s, self.inside / group.intra_bytes_per_s
        )


def all_to_all(nbytes: float, group: Exchange) -> Sent:
    """Exchange in which each device has `nbytes`, a like share of them for each member.

    Its own share stays where it is.
    """
    share = nbytes / group.num_members
    return Sent((group.num_members - group.num_together) * share, (group.num_together - 1) * share)


def one_copy(token_bytes: float, num_nodes_hit: float, num_devices_hit: float, group: Exchange) -> Sent:
    """Exchange in which each device sends its tokens once to each place that needs them.

    Parameters
    ----------
    token_bytes : float
        Of all tokens of a device, each once.
    num_nodes_hit, num_devices_hit : float
        Distinct nodes, and devices, that a token goes to, in the mean; its own among them.
    group : Exchange
        The devices.
    """
    num_nodes = group.num_members / group.num_together
    return Sent(
        token_bytes * num_nodes_hit * (1 - 1 / num_nodes),
        token_bytes * num_devices_hit * (1 - 1 / group.num_members),
    )


def expected_places(experts: Experts, num_places: int) -> float:
    """Expect so many distinct places, of `num_places` that share out the experts, among those of a token.

    Its k experts are drawn at random from the groups that it takes, and these from all groups; places hold
    neighbouring experts: parts of groups, or several of them.
    """
    per_group = experts.num_experts // experts.num_groups
    drawn, k = experts.num_groups_per_tok, experts.num_experts_per_tok
    allowed, here = drawn * per_group, experts.num_experts / num_places
    if here <= per_group:
        # A place in a group that is not taken is never hit.
        return num_places * drawn / experts.num_groups * (1 - _misses(allowed, round(here), k))
    groups_here = round(here / per_group)
    missed = sum(
        comb(groups_here, taken)
        * comb(experts.num_groups - groups_here, drawn - taken)
        / comb(experts.num_groups, drawn)
        * _misses(allowed, taken * per_group, k)
        for taken in range(min(groups_here, drawn) + 1)
    )
    return num_places * (1 - missed)


def _misses(num_experts: int, num_here: int, k: int) -> float:
    """Probability that none of k distinct experts is among some of them."""
    return comb(num_experts - num_here, k) / comb(num_experts, k)
