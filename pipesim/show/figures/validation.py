"""The measured timeline over the predicted one, schedule by schedule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipesim.ir.timeline import Timeline
from pipesim.show.figures.gantt import plot_gantt


def plot_validation(pairs: Sequence[tuple[str, Timeline, Timeline]], path: str | Path) -> None:
    """Draw each measured step over its prediction, all on one time axis.

    Parameters
    ----------
    pairs : sequence of (str, Timeline, Timeline)
        Title, one measured step of one replica that starts at 0, and the prediction.
    path : str or Path
        PNG or SVG.

    Raises
    ------
    ScenarioError
        If the name ends in neither, or the place cannot be written to.
    """
    drawn = []
    for title, measured, predicted in pairs:
        drawn += [(f"{title}, measured", measured), (f"{title}, predicted", predicted)]
    plot_gantt(drawn, path)
