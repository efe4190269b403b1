"""Unlike nodes, the data centres they stand in, and which of them each pipeline rank has."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from pipesim import units
from pipesim.errors import ScenarioError
from pipesim.scenario.hardware import Accelerator, Cluster, NodeGroup, SiteLink
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolved import Parallel
from pipesim.scenario.schema_cluster import ClusterKeys

_GROUPS, _LINKS = "cluster.groups", "cluster.site_links"


def resolve_groups(
    keys: ClusterKeys, accelerators: list[Accelerator], notes: Notes
) -> tuple[tuple[NodeGroup, ...], dict[tuple[int, int], SiteLink]]:
    """Read groups of nodes and the links between their sites.

    Parameters
    ----------
    keys : ClusterKeys
        The validated fields.
    accelerators : list of Accelerator
        Of each group.
    notes : Notes
        Receives the links.

    Raises
    ------
    ScenarioError
        Groups that do not add up to the nodes, beside `other_accelerators`, or sites without a link.
    """
    if not keys.groups:
        if keys.site_links:
            raise ScenarioError("missing; links between sites need groups of nodes at them", key=_GROUPS)
        return (), {}
    total = sum(group.num_nodes for group in keys.groups)
    if total != keys.num_nodes:
        raise ScenarioError(f"found {keys.num_nodes}; the groups have {total}", key="cluster.num_nodes")
    if keys.other_accelerators:
        raise ScenarioError(
            "groups say what every node has; remove one of the two", key="cluster.other_accelerators"
        )
    names = list(dict.fromkeys(group.site for group in keys.groups))
    if None in names and len(names) > 1:
        at = next(at for at, group in enumerate(keys.groups) if group.site is None)
        raise ScenarioError("missing; other groups name theirs", key=f"{_GROUPS}[{at}].site")
    groups = tuple(
        NodeGroup(group.num_nodes, accelerator, names.index(group.site))
        for group, accelerator in zip(keys.groups, accelerators, strict=True)
    )
    return groups, _links(keys, names, notes)


def _links(keys: ClusterKeys, names: list[str | None], notes: Notes) -> dict[tuple[int, int], SiteLink]:
    links: dict[tuple[int, int], SiteLink] = {}
    for at, link in enumerate(keys.site_links):
        where = f"{_LINKS}[{at}]"
        if len(link.between) != 2 or not set(link.between) <= set(names) or len(set(link.between)) != 2:
            known = ", ".join(str(name) for name in names if name is not None) or "none"
            raise ScenarioError(
                f"found {link.between}; two sites of groups are needed (there are: {known})",
                key=f"{where}.between",
            )
        first, second = sorted(names.index(name) for name in link.between)
        if (first, second) in links:
            raise ScenarioError(f"{' and '.join(link.between)} have a link already", key=f"{where}.between")
        if not link.bytes_per_s:
            raise ScenarioError("found 0; a rate above 0 is needed", key=f"{where}.bandwidth")
        links[first, second] = link
        notes.echo[where] = (
            f"{' - '.join(link.between)}: {units.format_bytes_per_s(link.bytes_per_s)}, "
            f"{units.format_time_s(link.latency_s)}, shared by all devices"
        )
    for pair in combinations(range(len(names)), 2):
        if pair not in links:
            raise ScenarioError(
                f"missing; {names[pair[0]]} and {names[pair[1]]} need a link between them", key=_LINKS
            )
    return links


def place_groups(cluster: Cluster, parallel: Parallel, notes: Notes) -> Cluster:
    """Say what each pipeline rank has; a rank with devices of several kinds has the slowest of them.

    Its replicas are then not alike, and all wait for the slowest at the end of a step; the memory is the
    least of theirs.

    Raises
    ------
    ScenarioError
        Devices that share a layer would stand in different data centres.
    """
    if not cluster.groups:
        return cluster
    numbered = device_numbers(parallel)
    _check_sites(cluster, parallel, numbered)
    of_device, others = cluster.accelerator_of_device(), {}
    for rank in range(parallel.pipeline):
        kinds = {of_device[device].name: of_device[device] for device in numbered[..., rank].ravel().tolist()}
        slowest = min(kinds.values(), key=_half_precision_flops)
        if len(kinds) > 1:
            least_bytes = min(kind.memory_bytes for kind in kinds.values())
            slowest = slowest.model_copy(update={"memory_bytes": least_bytes})
            notes.echo[f"cluster.groups (rank {rank})"] = (
                f"{' and '.join(kinds)} in its replicas: all take the time of {slowest.name}, the slowest"
            )
        if slowest != cluster.accelerator:
            others[rank] = slowest
    return replace(cluster, other_accelerators=others)


def _half_precision_flops(accelerator: Accelerator) -> float:
    return max(accelerator.peak_flops.get(name, 0.0) for name in ("bf16", "fp16"))


def device_numbers(parallel: Parallel) -> npt.NDArray[np.intp]:
    """Device of each (tensor, context, data, pipeline) place, by the rank order."""
    sizes = {"tp": parallel.tensor, "cp": parallel.context, "dp": parallel.data, "pp": parallel.pipeline}
    slowest_first = [axis for axis in reversed(parallel.rank_order) if axis in sizes]
    numbers = np.arange(parallel.num_gpus).reshape([sizes[axis] for axis in slowest_first])
    return numbers.transpose([slowest_first.index(axis) for axis in ("tp", "cp", "dp", "pp")])


def _check_sites(cluster: Cluster, parallel: Parallel, numbered: npt.NDArray[np.intp]) -> None:
    if not cluster.site_links:
        return
    sites = np.array(cluster.site_of_node)[numbered // cluster.gpus_per_node]
    for axis, name in ((0, "tensor"), (1, "context")):
        if (sites != sites.take([0], axis=axis)).any():
            raise ScenarioError(
                f"the {sites.shape[axis]} devices that share a layer would stand in several data centres; "
                "only stages and replicas are placed over them",
                key=f"parallel.{name}",
            )
    if parallel.expert > 1 and (sites != sites[:, :, :1]).any():
        raise ScenarioError(
            f"replicas stand in several data centres, over which {parallel.expert} devices would share out "
            "experts; that is not modelled",
            key="parallel.expert",
        )
