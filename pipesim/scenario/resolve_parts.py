"""Sections of a scenario that stand alone, or beside one other."""

from __future__ import annotations

from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolve_hardware import BORROWED_ERROR_BAND
from pipesim.scenario.resolved import Efficiency, KeptFree, Parallel, ScheduleChoice
from pipesim.scenario.schema import AnyScenarioKeys, CostKeys
from pipesim.units import format_bytes

DEFAULT_SCHEDULE = "1f1b"
DEFAULT_HEADROOM = 0.05
DEFAULT_MEMORY_RESERVE_BYTES = 2.0 * 2**30
"""Half a GiB of CUDA context (0.40 GiB beside torch's allocator in one process: HiDream-ai/VAREdit issue 6),
one of communicators (1.43 GiB with the context, four ranks: wbfwonderful/Vad-R1 issue 11), half of fragments
(0.2 to 0.96 GiB reserved but unallocated in such messages, as in ali-vilab/VGen issue 104)."""


def costs(keys: CostKeys, directory: Path) -> tuple[CostKeys | None, str | None]:
    """Return stated costs, or the file they are in."""
    if keys.file is None:
        return keys, None
    others = sorted(keys.model_fields_set - {"file"})
    if others:
        raise ScenarioError(f"costs come from the file, so {', '.join(others)} has no effect", key="costs")
    return None, str((directory / keys.file).absolute())


def schedule(keys: AnyScenarioKeys, directory: Path, notes: Notes) -> ScheduleChoice:
    """Return what schedule is named, by default 1F1B."""
    if keys.schedule is None:
        notes.default("schedule", DEFAULT_SCHEDULE)
        return ScheduleChoice(DEFAULT_SCHEDULE)
    if keys.schedule.csv is not None:
        return ScheduleChoice(None, csv=str((directory / keys.schedule.csv).absolute()))
    return ScheduleChoice(keys.schedule.name, dict(keys.schedule.model_extra or {}))


def kept_free(keys: AnyScenarioKeys, cluster: Cluster | None, notes: Notes) -> KeptFree:
    """Say what is left of the memory for tensors, and how much of that advice lets a run take.

    Raises
    ------
    ScenarioError
        A reserve that leaves a device nothing.
    """
    reserve_bytes, headroom = keys.memory_reserve, keys.headroom
    if reserve_bytes is None:
        reserve_bytes = 0.0 if cluster is None else DEFAULT_MEMORY_RESERVE_BYTES
        if cluster is not None:
            words = format_bytes(reserve_bytes)
            notes.default("memory_reserve", f"{words} of context, communicators and fragments")
    if headroom is None:
        headroom = 0.0 if keys.costs is not None and cluster is None else DEFAULT_HEADROOM
        if cluster is not None:
            notes.default("headroom", f"{headroom:.0%} of the memory left to tensors")
    if cluster is not None:
        _check_reserve(reserve_bytes, cluster)
    return KeptFree(reserve_bytes, headroom)


def _check_reserve(reserve_bytes: float, cluster: Cluster) -> None:
    devices = [cluster.accelerator, *cluster.other_accelerators.values()]
    devices = [group.accelerator for group in cluster.groups] or devices
    least = min(devices, key=lambda device: device.memory_bytes)
    if reserve_bytes >= least.memory_bytes:
        raise ScenarioError(
            f"found {format_bytes(reserve_bytes)}, and {least.name} has {format_bytes(least.memory_bytes)}; "
            "less is needed, which leaves tensors some, such as "
            f"{format_bytes(min(DEFAULT_MEMORY_RESERVE_BYTES, least.memory_bytes / 16))}",
            key="memory_reserve",
        )


def price(keys: AnyScenarioKeys, cluster: Cluster | None, parallel: Parallel, notes: Notes) -> float | None:
    """Rent of a device as stated, else of the mean device."""
    if keys.price_per_gpu_hour is not None:
        return keys.price_per_gpu_hour
    if cluster is None:
        return None
    devices = cluster.accelerator_of_device() or cluster.accelerators(
        cluster.num_numbered_ranks or parallel.pipeline
    )
    prices = [device.price_usd_per_hour for device in devices if device.price_usd_per_hour is not None]
    if len(prices) < len(devices):
        return None
    price = sum(prices) / len(prices)
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    words = f"preset {names}" if len(set(prices)) == 1 else f"mean of {names}, each rank's devices counted"
    notes.echo["price_per_gpu_hour"] = f"{price:g} USD ({words})"
    return price


def hides_gradients(
    keys: AnyScenarioKeys, parallel: Parallel, efficiency: Efficiency | None, notes: Notes
) -> bool:
    """Whether the set's software reduces gradients beside backwards, where the scenario says nothing."""
    if efficiency is None or not efficiency.gradient_overlap or parallel.num_replicas == 1:
        return False
    if keys.parallel.overlap_gradients is not None or keys.optimizer not in (None, "plain", "sharded"):
        return False
    notes.echo["parallel.overlap_gradients"] = (
        f"in closed form (default of {efficiency.name}'s software; true simulates every bucket)"
    )
    return True


def scatter_gather(
    keys: AnyScenarioKeys, parallel: Parallel, efficiency: Efficiency | None, notes: Notes
) -> bool:
    """Whether messages are cut: as stated, else as the software of the efficiency set does.

    With sequence parallelism activations are cut already (Megatron-LM leaves it out then).
    """
    stated = keys.network.scatter_gather
    if efficiency is None or parallel.tensor == 1 or parallel.pipeline == 1:
        return False
    if parallel.sequence_parallel:
        if stated:
            raise ScenarioError(
                "sequence_parallel cuts messages already; remove one of them", key="network.scatter_gather"
            )
        return False
    if stated is None:
        stated = efficiency.scatter_gather
        notes.echo["network.scatter_gather"] = f"{str(stated).lower()} (of {efficiency.name})"
    return stated


def warn_of_torch(efficiency: Efficiency, notes: Notes) -> None:
    """Say of a set that was fitted to transformers that it is used for something else."""
    if efficiency.error_band is None and not efficiency.domains:
        return
    notes.warnings.append(
        f"efficiency {efficiency.name} was fitted to transformers: for a torch model its numbers are "
        f"borrowed, and the step time may be off by {BORROWED_ERROR_BAND:.0%}"
    )
