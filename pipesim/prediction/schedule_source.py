"""Where a scenario's schedule comes from: the registry, or a CSV of actions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError, ScheduleError
from pipesim.files import printable_stem
from pipesim.ir import check_messages, has_messages, validate
from pipesim.ir.actions import Schedule
from pipesim.reading import read_text
from pipesim.scenario import ResolvedScenario
from pipesim.schedules import Family, Shape

GROUP_SIZE = "microbatch_group_size"


def shape_of(
    scenario: ResolvedScenario,
    chosen: Family,
    *,
    num_chunks: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Shape:
    """Shape of a schedule in a scenario.

    Parameters
    ----------
    scenario : ResolvedScenario
        Sizes; the schedule it names is not looked at.
    chosen : Family
        The schedule.
    num_chunks : int, optional
        Chunks a rank; by default the schedule's own number, else the scenario's.
    options : Mapping, optional
        Settings of the schedule. A stated microbatch group size goes to every schedule that takes one.
    """
    options = dict(options or {})
    default_chunks = chosen.chunks or scenario.parallel.virtual_stages
    if scenario.parallel.microbatch_group_size is not None and GROUP_SIZE in chosen.options:
        options.setdefault(GROUP_SIZE, scenario.parallel.microbatch_group_size)
    return Shape(
        num_ranks=scenario.parallel.pipeline,
        num_chunks=default_chunks if num_chunks is None else num_chunks,
        num_microbatches=scenario.batch.num_microbatches,
        options=options,
    )


def is_scenario_file(path: str | Path) -> bool:
    """Whether a name ends as a scenario's does."""
    return Path(path).suffix.lower() in (".yaml", ".yml")


def read_schedule(scenario: ResolvedScenario, path: str) -> Schedule:
    """Read a CSV of actions that must fit the scenario's ranks and microbatches.

    Raises
    ------
    ScenarioError
        If the file cannot be read or its sizes are others than the scenario's.
    ScheduleError
        If the schedule is malformed.
    """
    schedule = load_csv(path)
    for what, found, expected in (
        ("ranks", schedule.num_ranks, scenario.parallel.pipeline),
        ("microbatches", schedule.num_microbatches, scenario.batch.num_microbatches),
    ):
        if found != expected:
            raise ScenarioError(f"has {found} {what}, the scenario has {expected}", file=path)
    if schedule.num_stages % schedule.num_ranks:
        raise ScenarioError(
            f"has {schedule.num_stages} stages on {schedule.num_ranks} ranks; a multiple is needed, "
            "since costs are those of as many stages on every rank",
            file=path,
        )
    return schedule


def load_csv(path: str | Path) -> Schedule:
    """Read and validate a CSV of actions; communication in it is checked, and dropped.

    Raises
    ------
    ScenarioError
        If the file cannot be read.
    ScheduleError
        If the schedule is malformed.
    """
    try:
        stated = Schedule.from_csv(read_csv_text(path), name=printable_stem(path))
        schedule = stated.compute_only()
        validate(schedule)
        if has_messages(stated):
            check_messages(stated)
    except ScheduleError as error:
        raise type(error)(f"{path}: {error}") from None
    return schedule


def read_csv_text(path: str | Path) -> str:
    """Read a file of actions; raise `ScenarioError` where that cannot be done."""
    return read_text(path, large=True)
