"""From samples to a cost table, with the evidence for each number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.costs import CostTable
from pipesim.costs.file import write_cost_table
from pipesim.costs.host import HostCost
from pipesim.costs.network.alpha_beta import LinkCost, PointToPoint
from pipesim.errors import ExecutionError
from pipesim.evidence.calibration.lines import AffineTime, fit_line
from pipesim.evidence.calibration.samples import NO_TABLE, FloatArray, Samples
from pipesim.ir.actions import Op

if TYPE_CHECKING:
    import pandas as pd

_OPS = (Op.F, Op.B, Op.I, Op.W)


@dataclass(frozen=True, slots=True, repr=False)
class MeasuredCosts:
    """A measured cost table.

    Parameters
    ----------
    costs : CostTable
        What `pipesim.costs.file` writes; memory is not measured and stays zero.
    evidence : dict
        Plain data: for each number how many samples, median, spread and residual.
    notes : tuple of str
        What could not be measured or used.
    """

    costs: CostTable
    evidence: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """One line a stage: medians in seconds."""
        import pandas as pd

        names = ("forward_s", "backward_s", "input_gradient_s", "weight_gradient_s", "optimizer_s")
        stages = pd.RangeIndex(self.costs.num_stages, name="stage")
        return pd.DataFrame({name: getattr(self.costs, name) for name in names}, index=stages)

    def save(self, path: str | Path) -> None:
        """Write the cost table, for a scenario's ``costs: {file: ...}``.

        Raises
        ------
        ScenarioError
            If the place cannot be written to.
        """
        write_cost_table(self.costs, path, evidence=self.evidence)

    def __repr__(self) -> str:
        return f"{self.frame.to_string()}\n{self._summary()}"

    def _repr_html_(self) -> str:
        return f"{self.frame.to_html()}<p>{escape(self._summary())}</p>"

    def _summary(self) -> str:
        used, disturbed = self.evidence["steps_used"], self.evidence["steps_disturbed"]
        message_s = self.evidence["message_s"]["fixed_s"]
        return f"{used} steps used, {disturbed} disturbed; a message takes {message_s:.3g} s and its bytes"


def calibrate(measured: Sequence[Samples], links: Sequence[Samples] = ()) -> MeasuredCosts:
    """Make one cost table of what several runs or traces tell.

    Durations are medians. The first one decides whose they are: of others that computed something else, or
    cut it into other stages, only messages count, for links are the same for all.

    Parameters
    ----------
    measured : sequence of Samples
        At least one.
    links : sequence of Samples
        More of them that tell of messages only.

    Raises
    ------
    ExecutionError
        If forward or backward of a stage was never measured.
    """
    first = measured[0]
    alike = [s for s in measured if s.workload == first.workload and s.num_stages == first.num_stages]
    num_stages = first.num_stages
    times, operations, split = _operations(alike, num_stages, first.source)
    pairs = _merged([s.pair_s for s in alike])
    everything = [*measured, *links]
    link, link_notes = _link(everything, alike)
    host, host_evidence = _host(everything, alike)
    sync_s, optimizer_s, end_evidence = _step_end(alike, first)
    nothing = np.zeros(num_stages)
    costs = CostTable(
        forward_s=times[Op.F],
        backward_s=times[Op.B],
        input_gradient_s=times[Op.I],
        weight_gradient_s=times[Op.W],
        overlapped_pair_s=_overlapped(pairs, num_stages),
        boundary_bytes=_known([s.boundary_bytes for s in alike], num_stages),
        point_to_point=PointToPoint.uniform(_link_cost(link)),
        host=host,
        gradient_bytes=_known([first.gradient_bytes], num_stages),
        gradient_collective="none",
        weight_bytes=nothing,
        optimizer_bytes=nothing,
        activation_bytes=nothing,
        working_bytes=nothing,
        provenance={"costs": f"measured: {', '.join(s.source for s in measured)}"},
        fixed_sync_s=sync_s,
        optimizer_s=optimizer_s,
    )
    notes = (*_not_used(measured, alike), *split, *link_notes)
    evidence = {
        "steps_used": sum(s.num_steps for s in measured),
        "steps_disturbed": sum(s.num_disturbed for s in measured),
        "operations_s": operations,
        "message_s": _line_evidence(link),
        **host_evidence,
        **end_evidence,
        **({"overlapped_pairs_s": _spreads(pairs)} if pairs else {}),
        "not_used": list(notes),
    }
    return MeasuredCosts(costs, evidence, notes)


def _not_used(measured: Sequence[Samples], alike: Sequence[Samples]) -> list[str]:
    first, notes = measured[0].source, [f"{s.source}: {words}" for s in measured for words in s.unused]
    return notes + [
        f"{s.source}: computes something else than {first}, or in other stages; used for links only"
        for s in measured
        if s not in alike
    ]


def _operations(
    alike: Sequence[Samples], num_stages: int, source: str
) -> tuple[dict[Op, FloatArray], dict[str, Any], list[str]]:
    samples = _merged([s.op_s for s in alike])
    median = {
        op: np.array([np.median(samples.get((op, s), [np.nan])) for s in range(num_stages)]) for op in _OPS
    }
    whole, split = median[Op.B], median[Op.I] + median[Op.W]
    notes = []
    never = np.isnan(split)
    if never.any():
        half = np.where(np.isnan(whole), np.nan, whole / 2)
        for op in (Op.I, Op.W):
            median[op] = np.where(never, half, median[op])
        notes.append(f"I and W of stages {_list(never)} never ran apart: half of B each")
    never = np.isnan(whole)
    summed = never & ~np.isnan(split)
    if summed.any():
        median[Op.B] = np.where(summed, split, whole)
        notes.append(f"B of stages {_list(summed)} never ran whole: I + W")
    for op in (Op.F, Op.B):
        if np.isnan(median[op]).any():
            stages = _list(np.isnan(median[op]))
            raise ExecutionError(f"{source}: {op.name} of stages {stages} was never measured by itself")
    evidence = {
        op.name: {
            str(stage): _spread(samples[op, stage]) for stage in range(num_stages) if (op, stage) in samples
        }
        for op in _OPS
    }
    return median, {name: stages for name, stages in evidence.items() if stages}, notes


def _overlapped(pairs: Mapping[int, FloatArray], num_stages: int) -> FloatArray | None:
    """Durations of pairs by stage; None, which means the sum, unless all were seen."""
    if set(pairs) != set(range(num_stages)):
        return None
    return np.array([np.median(pairs[stage]) for stage in range(num_stages)])


def _link(measured: Sequence[Samples], alike: Sequence[Samples]) -> tuple[AffineTime, list[str]]:
    line = _line([s.message_s for s in alike], [s.message_s for s in measured if s not in alike])
    if not line.groups:
        return line, ["no message was seen to arrive while its receiver waited: links cost nothing"]
    if line.per_byte_s is None:
        return line, [
            f"messages of one size only ({line.groups[0].nbytes:.0f} bytes): latency and bandwidth cannot be "
            f"told apart, the latency holds both"
        ]
    return line, []


def _line(samples: Sequence[FloatArray], others: Sequence[FloatArray]) -> AffineTime:
    return fit_line(np.concatenate([NO_TABLE, *samples]), np.concatenate([NO_TABLE, *others]))


def _link_cost(line: AffineTime) -> LinkCost:
    return LinkCost(line.fixed_s, 1 / line.per_byte_s if line.per_byte_s else None)


def _host(measured: Sequence[Samples], alike: Sequence[Samples]) -> tuple[HostCost, dict[str, Any]]:
    calls = _line([s.send_call_s for s in alike], [s.send_call_s for s in measured if s not in alike])
    gaps = np.concatenate([s.gap_s for s in alike])
    meetings = np.concatenate([s.meeting_s for s in alike])
    hidden = alike[0].hides_host
    evidence = {
        "send_call_s": {**_line_evidence(calls), "hidden_by_the_device": hidden},
        "gap_s": _spread(gaps) if len(gaps) else None,
        "meeting_before_optimizer_s": _spread(meetings) if len(meetings) else None,
    }
    return (
        HostCost(
            per_message_s=0.0 if hidden else calls.fixed_s,
            per_byte_s=0.0 if hidden else calls.per_byte_s or 0.0,
            per_action_s=_median(gaps),
            meeting_s=_median(meetings),
        ),
        evidence,
    )


def _step_end(alike: Sequence[Samples], first: Samples) -> tuple[FloatArray, FloatArray, dict[str, Any]]:
    """Reductions as fixed times, and each rank's optimizer shared out over its stages."""
    num_stages = first.num_stages
    placed = [s for s in alike if s.stages_of_rank == first.stages_of_rank]
    sync, optimizer = _merged([s.sync_s for s in alike]), _merged([s.optimizer_s for s in placed])
    optimizer_s = np.zeros(num_stages)
    for rank, stages in enumerate(first.stages_of_rank):
        optimizer_s[list(stages)] += _median(optimizer.get(rank, np.zeros(0))) / len(stages)
    evidence: dict[str, Any] = {"optimizer_s": _spreads(optimizer)}
    if sync:
        reduced = fit_line(
            np.concatenate(
                [np.stack([np.full(len(v), first.gradient_bytes[s]), v], axis=1) for s, v in sync.items()]
            )
        )
        evidence["gradient_reduction_s"] = _line_evidence(reduced)
    fixed = np.array([float(np.median(sync[s])) if s in sync else 0.0 for s in range(num_stages)])
    return fixed, optimizer_s, evidence


def _merged(parts: Sequence[Mapping[Any, FloatArray]]) -> dict[Any, FloatArray]:
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: np.concatenate([part[key] for part in parts if key in part]) for key in keys}


def _known(measured: Sequence[FloatArray], num_stages: int) -> FloatArray:
    """Bytes of each stage as the first one that knows them says; 0 where none does."""
    known = np.full(num_stages, np.nan)
    for values in measured:
        if len(values):
            known = np.where(np.isnan(known), values, known)
    return np.where(np.isnan(known), 0.0, known)


def _spread(values: FloatArray) -> dict[str, Any]:
    low, middle, high = np.percentile(values, (10, 50, 90))
    return {"num_samples": len(values), "median_s": float(middle), "p10_s": float(low), "p90_s": float(high)}


def _spreads(samples: Mapping[int, FloatArray]) -> dict[str, Any]:
    return {str(place): _spread(values) for place, values in samples.items()}


def _median(values: FloatArray) -> float:
    return max(0.0, float(np.median(values))) if len(values) else 0.0


def _line_evidence(line: AffineTime) -> dict[str, Any]:
    sizes = [group.to_dict() for group in line.groups]
    return {"fixed_s": line.fixed_s, "per_byte_s": line.per_byte_s, "sizes": sizes}


def _list(chosen: FloatArray) -> str:
    return ", ".join(map(str, np.flatnonzero(chosen).tolist()))
