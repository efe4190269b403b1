"""Traces sorted into runs and ranks, their actions by the stages that they belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.evidence.calibration.kineto import HERE, Trace, TracedAction


@dataclass(frozen=True, slots=True)
class StagedTrace:
    """One rank of a run; every action names its stage."""

    path: Path
    on_gpu: bool
    host: str | None
    actions: list[TracedAction]

    @property
    def stages(self) -> tuple[int, ...]:
        """Those that the rank computes."""
        return tuple(sorted({part.stage for t in self.actions if t.is_computation for part in t.parts}))


def by_run(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Sort traces into runs: those of a folder are one, unless they are of the same rank; then one a time."""
    runs: dict[tuple[Path, int], list[Trace]] = defaultdict(list)
    seen: dict[tuple[Path, int | None], int] = defaultdict(int)
    for trace in traces:
        folder = trace.path.parent
        turn = 0 if trace.rank is None else seen[folder, trace.rank]
        seen[folder, trace.rank] += 1
        runs[folder, turn].append(trace)
    return list(runs.values())


def with_stages(traces: Sequence[Trace]) -> list[StagedTrace]:
    """Name the stage of every action; where annotations name none, ranks in order are the stages.

    Raises
    ------
    ScenarioError
        If stages are not named and cannot be told from ranks, or two traces have the same.
    """
    unnamed = [trace for trace in traces if any(a.action.stage == HERE for a in trace.actions)]
    if unnamed and (len(unnamed) < len(traces) or any(trace.rank is None for trace in traces)):
        raise ScenarioError(
            "annotations name no stage, and which rank is which is not in all traces",
            file=str(unnamed[0].path),
        )
    ordered = sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0, str(trace.path)))
    owner: dict[int, Trace] = {}
    staged = []
    for place, trace in enumerate(ordered):
        actions = [
            replace(t, action=t.action._replace(stage=place)) if t.action.stage == HERE else t
            for t in trace.actions
        ]
        found = StagedTrace(trace.path, trace.on_gpu, trace.host, actions)
        for stage in found.stages:
            if owner.setdefault(stage, trace) is not trace:
                raise ScenarioError(
                    f"stage {stage} is in {owner[stage].path.name} too; give the traces of one pipeline only",
                    file=str(trace.path),
                )
        staged.append(found)
    return staged
