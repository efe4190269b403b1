"""Cluster, efficiency and number formats from their keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

from pipesim import units
from pipesim.errors import ScenarioError
from pipesim.scenario.domain import BORROWED_HALF_WIDTH
from pipesim.scenario.hardware import PEAK_OF, Accelerator, Cluster, Link
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolve_groups import resolve_groups
from pipesim.scenario.resolved import ActivationFormat, ComputeFormat, Efficiency, Precision
from pipesim.scenario.schema import (
    ClusterKeys,
    PrecisionKeys,
)

FP8_DISPATCH_BYTES = 1 + 4 / 128
"""A byte a value and a 32-bit scale for each 128 of them (arXiv 2412.19437, section 3.3)."""
BORROWED_ERROR_BAND = math.expm1(BORROWED_HALF_WIDTH)


def resolve_cluster(keys: ClusterKeys, notes: Notes) -> Cluster:
    """Build the cluster; a single node needs no link between nodes.

    Raises
    ------
    ScenarioError
        Several nodes without a link between them, or an accelerator that has neither bf16 nor fp16.
    """
    if keys.inter_node is None and keys.num_nodes > 1:
        raise ScenarioError(
            f"missing; {keys.num_nodes} nodes need a link between them, such as ib-ndr",
            key="cluster.inter_node",
        )
    if "gpus_per_node" not in keys.model_fields_set:
        notes.default("cluster.gpus_per_node", keys.gpus_per_node)
    accelerator, others = keys.accelerator, dict(keys.other_accelerators)
    of_groups = [group.accelerator for group in keys.groups]
    _check_peaks(accelerator, *others.values(), *of_groups)
    intra_node = keys.intra_node
    inter_node = intra_node if keys.inter_node is None else keys.inter_node
    memory = units.format_bytes(accelerator.memory_bytes)
    notes.echo["cluster.accelerator"] = f"{accelerator.name}, {memory} of memory"
    for key, link in (("intra_node", intra_node), ("inter_node", inter_node)):
        if key == "inter_node" and keys.inter_node is None:
            continue
        reached = units.format_bytes_per_s(link.bytes_per_s)
        nominal = units.format_bytes_per_s(link.nominal_bytes_per_s)
        usual = " (not stated; usual for the accelerator)" if f"cluster.{key}" in notes.echo else ""
        notes.echo[f"cluster.{key}"] = f"{link.name}, {reached} of a nominal {nominal}{usual}"
    nics = _nics_per_node(keys, inter_node, notes)
    groups, site_links = resolve_groups(keys, of_groups, notes)
    return Cluster(
        accelerator,
        keys.num_nodes,
        keys.gpus_per_node,
        intra_node,
        inter_node,
        nics_per_node=nics,
        paired=keys.intra_wiring == "pairs",
        nodes_per_switch=_nodes_per_switch(keys),
        oversubscription=1.0 if keys.oversubscription is None else keys.oversubscription,
        rails=bool(keys.rails),
        degraded_nodes=_degraded_nodes(keys),
        other_accelerators=others,
        groups=groups,
        site_links=site_links,
    )


def _nics_per_node(keys: ClusterKeys, inter_node: Link, notes: Notes) -> int:
    """Say how many cards a node has, and what they carry together: a link's name tells neither."""
    stated, num_devices = keys.nics_per_node, keys.gpus_per_node
    nics = num_devices if stated is None else stated
    if num_devices % nics:
        raise ScenarioError(
            f"found {nics}; a number that divides the {num_devices} devices of a node is needed",
            key="cluster.nics_per_node",
        )
    share = "one a device" if nics == num_devices else f"shared by {num_devices // nics} devices each"
    words = f"{nics} (default, {share})" if stated is None else f"{nics}, {share}"
    if keys.inter_node is not None:
        nominal = units.format_bytes_per_s(nics * inter_node.nominal_bytes_per_s)
        notes.echo["cluster.nics_per_node"] = f"{words}: a nominal {nominal} a node"
    elif stated is not None:
        notes.echo["cluster.nics_per_node"] = words
    return nics


def _degraded_nodes(keys: ClusterKeys) -> dict[int, float]:
    for node in keys.degraded_nodes:
        if node >= keys.num_nodes:
            raise ScenarioError(
                f"found node {node}; nodes are 0 to {keys.num_nodes - 1}", key="cluster.degraded_nodes"
            )
    return dict(keys.degraded_nodes)


def _nodes_per_switch(keys: ClusterKeys) -> int | None:
    if keys.nodes_per_switch is None:
        for key in ("oversubscription", "rails"):
            if getattr(keys, key) is not None:
                raise ScenarioError(
                    "missing; needed to know which nodes share a leaf switch", key="cluster.nodes_per_switch"
                )
    if keys.oversubscription is not None and keys.oversubscription < 1:
        raise ScenarioError(
            f"found {keys.oversubscription:g}; at least 1 is needed, such as 2 for half as many up-links",
            key="cluster.oversubscription",
        )
    return keys.nodes_per_switch


def resolve_efficiency(
    keys: Efficiency | None, names: Sequence[str], notes: Notes
) -> tuple[Efficiency, tuple[str, ...]]:
    """Take the efficiency set, and name the accelerators of the cluster on which it was not fitted.

    Parameters
    ----------
    keys : Efficiency, optional
        The validated fields.
    names : sequence of str
        Accelerators, the one that chose the set first.
    notes : Notes
        Receives what is borrowed.

    Raises
    ------
    ScenarioError
        No set was stated, and the accelerator names none.
    """
    if keys is None:
        raise ScenarioError(
            f"missing; {names[0]} has no usual set: name a preset such as h100-nemo, or its fields",
            key="efficiency",
        )
    known = "source" not in keys.model_fields_set
    borrowed_for = () if known else tuple(name for name in dict.fromkeys(names) if name not in keys.fitted_on)
    if borrowed_for:
        notes.warnings.append(
            f"efficiency {keys.name} was not fitted on {', '.join(borrowed_for)}: its numbers are "
            f"borrowed, and the step time may be off by {BORROWED_ERROR_BAND:.0%}"
        )
    notes.echo["efficiency.attention_kernel"] = f"{keys.attention_kernel} (of {keys.name})"
    return keys.model_copy(update={"error_band": None}) if borrowed_for else keys, borrowed_for


def resolve_precision(keys: PrecisionKeys, accelerator: Accelerator | None, notes: Notes) -> Precision:
    """Choose the compute format (bf16, or fp16 where there is no bf16) and the bytes a parameter.

    Raises
    ------
    ScenarioError
        The accelerator has no such format.
    """
    peaks = {"bf16": 1.0} if accelerator is None else accelerator.peak_flops
    formats = [name for name in get_args(ComputeFormat) if PEAK_OF.get(name, name) in peaks]
    compute = keys.compute
    if compute is None:
        compute = "bf16" if "bf16" in formats else "fp16"
        if accelerator is not None:
            notes.default("precision.compute", compute)
    elif compute not in formats:
        name = "" if accelerator is None else accelerator.name
        raise ScenarioError(
            f"{name} has no peak rate for {compute}, only for {', '.join(formats)}", key="precision.compute"
        )
    for key in ("weight_bytes", "gradient_bytes", "optimizer_bytes"):
        if key not in keys.model_fields_set and accelerator is not None:
            notes.default(f"precision.{key}", f"{getattr(keys, key):g} a parameter")
    narrow: dict[str, ActivationFormat] = {"fp8": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
    kept = keys.activation_format or narrow.get(compute, "16-bit")
    if keys.activation_format is None and accelerator is not None and compute in narrow:
        notes.default("precision.activation_format", kept)
    dispatch = keys.dispatch_format or ("fp8" if compute in narrow else "16-bit")
    return Precision(
        compute,
        keys.weight_bytes,
        keys.gradient_bytes,
        keys.optimizer_bytes,
        kept,
        1.0 if keys.activation_function_format == "fp8" else 2.0,
        FP8_DISPATCH_BYTES if dispatch == "fp8" else 2.0,
    )


def _check_peaks(*accelerators: Accelerator) -> None:
    for one in accelerators:
        if "bf16" not in one.peak_flops and "fp16" not in one.peak_flops:
            raise ScenarioError("a rate for bf16 or fp16 is needed", key="cluster.accelerator.peak")
