"""All-to-all: every device of a group has something for every other one."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    num_members: int
    num_together: int
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    latency_s: float


def all_to_all_s(nbytes: float, group: Exchange | None) -> float:
    """Seconds of an exchange in which each device has `nbytes`, a like share of them for each member.

    Its own share stays where it is. A group of one (None) has nothing to do.
    """
    if group is None:
        return 0.0
    share = nbytes / group.num_members
    intra_s = (group.num_together - 1) * share / group.intra_bytes_per_s
    inter_s = (group.num_members - group.num_together) * share / group.inter_bytes_per_s
    return group.latency_s + max(intra_s, inter_s)
