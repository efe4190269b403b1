"""The answer of a report in sentences: which schedule, by how much, what limits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from pipesim.show.amounts import amount, percent, seconds
from pipesim.show.choice import THIN_SHARE, Chosen, choose, held_at_most
from pipesim.show.glossary import part_name
from pipesim.show.protocols import ComparedRuns, R, TimedRun
from pipesim.show.remarks import framework_sentence

_UNEXPLAINED = "not_explained_s"


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """All results, the one to run, and the scenario's own.

    Parameters
    ----------
    comparison : ComparedRuns
        All of them, the scenario's own among them.
    own : TimedRun, optional
        None where the scenario's schedule cannot run.
    refusal : str
        Why it cannot, else nothing.
    choice : Chosen
        What to run.
    """

    comparison: ComparedRuns[R]
    own: R | None
    refusal: str
    choice: Chosen[R]

    @classmethod
    def of(cls, comparison: ComparedRuns[R], own: R | None, refusal: str = "") -> Answer[R]:
        """Choose among results."""
        return cls(comparison, own, refusal, choose(comparison.results, own=own, free_share=1 - THIN_SHARE))

    @property
    def shown(self) -> list[R]:
        """The chosen one, and the scenario's own where it is another."""
        best = self.choice.best
        return [best] if self.own is None or self.own is best else [best, self.own]

    @property
    def saved(self) -> float | None:
        """Share of the own step time that the choice saves; negative where it takes longer."""
        return None if self.own is None else 1 - _ratio(self.choice.best, self.own)

    def sentences(self) -> list[str]:
        """Say what to run, the most important first."""
        best = self.choice.best
        lines = [self._headline(), self._against_own(), _limits(best), _memory(best)]
        lines.append(framework_sentence(best))
        if note := self.comparison.one_chunk_note:
            lines.append(f"Not compared: more chunks a rank. {note}.")
        if (roomy := self.choice.roomy) is not None:
            lines.append(
                f"The fastest that leaves {percent(1 - THIN_SHARE)} of the memory free is {roomy.label}: "
                f"{seconds(roomy.metrics.step_time_s)}, {amount(roomy.metrics.peak_memory_bytes)}."
            )
        if (jitter := best.scenario.jitter) is not None and jitter.random:
            lines.append("Times differ from step to step in this scenario; every number here is of one step.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the comparison, and the answer."""
        return {
            "best": _facts(self.choice.best),
            "scenario_schedule": None if self.own is None else _facts(self.own),
            "saved_share": self.saved,
            "answer": self.sentences(),
            **self.comparison.to_dict(),
        }

    def _headline(self) -> str:
        best = self.choice.best
        time = f"{seconds(best.metrics.step_time_s)} a step"
        if (band := best.band_s) is not None:
            time += f" (nine times of ten {' to '.join(map(seconds, band))})"
        if not self.choice.fits:
            return f"No schedule fits in the device's memory; {best.label} needs the least: {time}."
        rivals = [
            result
            for result in self.comparison.results
            if result.synchronous == best.synchronous and result.metrics.fits_memory is not False
        ]
        kind = "schedule" if best.synchronous else "asynchronous schedule"
        if best.metrics.fits_memory is None:
            which = (
                f"the fastest of {len(rivals)} {kind}s" if len(rivals) > 1 else f"the only {kind} compared"
            )
        elif len(rivals) > 1:
            which = f"the fastest of {len(rivals)} {kind}s that fit in memory"
        else:
            which = f"the only {kind} compared that fits in memory"
        if self.comparison.one_chunk_note:
            which += ", interleaved ones tried with one chunk a rank only"
        return f"{best.label} is {which}: {time}."

    def _against_own(self) -> str:
        best, own = self.choice.best, self.own
        if own is None:
            return f"The scenario's own schedule cannot run: {self.refusal}."
        if own is best:
            return "It is the schedule in the scenario."
        saved_s = float(own.metrics.step_time_s) - float(best.metrics.step_time_s)
        share = abs(1 - _ratio(best, own))
        compared = (
            f"{seconds(abs(saved_s))} ({percent(share)}) {'less' if saved_s > 0 else 'more'} a step than"
            if round(share, 9)
            else "as long as"
        )
        text = (
            f"It takes {compared} {own.label}, the schedule in the scenario: "
            f"{seconds(own.metrics.step_time_s)}"
        )
        if own.metrics.fits_memory is False:
            text += ", which does not fit in memory"
        return f"{text}{'' if own.synchronous else ', asynchronous'}."


def _facts(run: TimedRun) -> dict[str, Any]:
    return {
        "schedule": run.schedule.name,
        "num_chunks": run.metrics.num_chunks,
        "step_time_s": float(run.metrics.step_time_s),
        "fits_memory": run.metrics.fits_memory,
    }


def _ratio(one: TimedRun, other: TimedRun) -> float:
    return float(one.metrics.step_time_s) / float(other.metrics.step_time_s)


def _limits(result: TimedRun) -> str:
    """Say what its step time consists of."""
    parts = {name: float(value) for name, value in result.breakdown.items() if value and name != _UNEXPLAINED}
    shares = {part_name(name): value / sum(parts.values()) for name, value in parts.items()}
    computing = shares.pop(part_name("compute_s"), 0.0)
    lost = sorted(shares.items(), key=lambda item: -item[1])[:2]
    text = f"What limits it: computing takes {percent(computing)} of the step"
    return f"{text}{''.join(f', {name} {percent(share)}' for name, share in lost)}."


def _memory(result: TimedRun) -> str:
    peak_bytes, limit_bytes = result.metrics.peak_memory_bytes, result.costs.memory_limit_bytes
    if peak_bytes is None:
        held = f"{held_at_most(result):.4g}"
        return f"The scenario states no memory; a rank holds the activations of at most {held} microbatches."
    if limit_bytes is None:
        return f"A device needs {amount(peak_bytes)} of memory."
    share = percent(peak_bytes / limit_bytes)
    return f"A device needs {amount(peak_bytes)} of its {amount(limit_bytes)} of memory ({share})."
