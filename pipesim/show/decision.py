"""The answer of a report: the judgement, what it was made of, and the same as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from pipesim.show.advice_lines import advice_lines
from pipesim.show.protocols import ComparedRuns, JudgedRuns, R


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """All results, and which of them to run.

    Parameters
    ----------
    comparison : ComparedRuns
        All of them, the scenario's own among them where it can run.
    judged : JudgedRuns
        What to run.
    refusal : str
        Why the scenario's own schedule cannot run, else nothing.
    """

    comparison: ComparedRuns[R]
    judged: JudgedRuns[R]
    refusal: str

    @property
    def best(self) -> R:
        """What to run."""
        return self.judged.recommended

    @property
    def own(self) -> R | None:
        """The scenario's own schedule; None where it cannot run."""
        return self.judged.own

    @property
    def shown(self) -> list[R]:
        """The chosen one, and the scenario's own where it is another."""
        return [self.best] if self.own is None or self.own is self.best else [self.best, self.own]

    def sentences(self) -> list[str]:
        """Say what to run, the most important first."""
        lines = advice_lines(self.judged, self.refusal)
        if note := self.comparison.one_chunk_note:
            lines.append(f"Not compared: more chunks a rank. {note}.")
        if (jitter := self.best.scenario.jitter) is not None and jitter.random:
            lines.append("Times differ from step to step in this scenario; every number here is of one step.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the comparison, and the answer."""
        own = None if self.own is None else _facts(self.own)
        return {
            "best": _facts(self.best),
            "scenario_schedule": own,
            "saved_share": self.judged.gain,
            "judgement": self.judged.to_dict(),
            "answer": self.sentences(),
            **self.comparison.to_dict(),
        }


def _facts(run: Any) -> dict[str, Any]:
    return {
        "schedule": run.schedule.name,
        "num_chunks": run.metrics.num_chunks,
        "step_time_s": float(run.metrics.step_time_s),
        "fits_memory": run.metrics.fits_memory,
        "fits_headroom": run.metrics.fits_headroom,
    }
