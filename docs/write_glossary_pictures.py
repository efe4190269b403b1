"""Draw docs/glossary/*.png: one small timeline a word, in which what the word means stands out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import pipesim
from pipesim.ir.actions import Op
from pipesim.show.figures.canvas import COLOURS, letters_on, shade

FOLDER = Path(__file__).with_name("glossary")
PALE, IDLE, MARK = "#e3e3e3", "#fafafa", "#c33c54"
ALL: Callable[[Any], Any] = lambda t: np.ones(len(t), bool)  # noqa: E731
NONE: Callable[[Any], Any] = lambda t: np.zeros(len(t), bool)  # noqa: E731


@dataclass(frozen=True)
class Sketch:
    """What of a timeline stands out: boxes, spans under a rank with words, idle time in a colour."""

    lit: Callable[[Any], Any] = NONE
    schedule: str = "1f1b"
    spans: tuple[tuple[int, float, float, str], ...] = ()
    """Rank (-1: over all), begin, end, words."""
    idle: bool = False
    arrow: tuple[float, float, float, float] | None = None
    """Time and rank where it begins and ends."""
    settings: dict[str, Any] = field(default_factory=dict)


# Four ranks, F 1 and B 2: 1F1B of four microbatches takes (m + p - 1)(F + B) = 21.
SKETCHES = {
    "rank": Sketch(lambda t: t["rank"] == 1),
    "stage": Sketch(lambda t: t["stage"] == 5, "interleaved-1f1b"),
    "chunk": Sketch(lambda t: t["rank"] == 1, "interleaved-1f1b"),
    "microbatch": Sketch(lambda t: t["microbatch"] == 2),
    "step": Sketch(
        ALL, spans=((-1, 0, 21, "one step: all microbatches there and back, then the optimizer"),)
    ),
    "order": Sketch(lambda t: t["rank"] == 2, spans=((2, 2, 19, "what rank 2 does, one after the other"),)),
    "operations": Sketch(ALL, "zb-h1"),
    "warm-up": Sketch(lambda t: (t["rank"] == 0) & (t["end_s"] <= 4), spans=((0, 0, 4, "warm-up"),)),
    "steady": Sketch(
        lambda t: (t["rank"] == 1) & (t["start_s"] >= 8) & (t["end_s"] <= 13),
        spans=((1, 8, 13, "steady: one forward, one backward"),),
    ),
    "cool-down": Sketch(
        lambda t: (t["rank"] == 0) & (t["start_s"] >= 10), spans=((0, 10, 21, "cool-down: backwards alone"),)
    ),
    "in flight": Sketch(
        lambda t: (t["rank"] == 0) & (t["op"] == Op.F), spans=((0, 0, 12, "four microbatches held"),)
    ),
    "makespan": Sketch(ALL, spans=((-1, 0, 21, "makespan: first start to last end"),)),
    "bubble ratio": Sketch(ALL, idle=True, spans=((-1, 0, 21, "red / everything = 3 / 7"),)),
    "bubble overhead": Sketch(
        ALL, idle=True, spans=((-1, 0, 12, "ideal: mean busy time"), (-1, 12, 21, "above it: 9 / 12"))
    ),
    "span bubble": Sketch(
        lambda t: t["rank"] == 0, spans=((0, 0, 21, "longest first start to last end of one rank"),)
    ),
    "dependency": Sketch(
        lambda t: (
            ((t["rank"] == 1) & (t["op"] == Op.B) & (t["microbatch"] == 0))
            | ((t["rank"] == 0) & (t["op"] == Op.B) & (t["microbatch"] == 0))
        ),
        spans=((0, 4, 10, "waits for 1B0"),),
        arrow=(10, 1, 10, 0),
    ),
    "exposed p2p": Sketch(
        lambda t: (
            ((t["rank"] == 1) & (t["op"] == Op.F) & (t["microbatch"] == 0))
            | ((t["rank"] == 0) & (t["op"] == Op.F) & (t["microbatch"] == 0))
        ),
        spans=((1, 1, 1.8, "message"),),
        arrow=(1, 0, 1.8, 1),
        settings={"p2p": 0.8},
    ),
    "overlapped pair": Sketch(lambda t: t["paired"], "dualpipe-v", settings={"microbatches": 8}),
    "critical path": Sketch(
        lambda t: (
            ((t["op"] == Op.F) & (t["microbatch"] == 0))
            | (t["rank"] == 3)
            | ((t["op"] == Op.B) & (t["microbatch"] == 3))
        ),
    ),
}


def timeline(sketch: Sketch) -> tuple[Any, Any]:
    """Predict the sketch's small step; rows of computations, with `paired`."""
    times = {"ranks": 4, "microbatches": 4, "forward": 1, "backward": 2, "p2p": 0, **sketch.settings}
    chunks = 2 if sketch.schedule == "interleaved-1f1b" else None
    run = pipesim.Scenario.times(**times).predict(sketch.schedule, chunks=chunks)
    rows = run.timeline
    rows = rows[rows["stream"] == "compute"].copy()
    rows = rows[rows["op"].isin(["F", "B", "I", "W"])]
    rows["paired"] = run.schedule.joined | np.roll(run.schedule.joined, 1)
    rows["op"] = [Op[name] for name in rows["op"]]
    return rows.reset_index(drop=True), run


def draw(sketch: Sketch) -> Figure:
    """Draw a sketch."""
    rows, run = timeline(sketch)
    longest = float(run.makespan_s)
    figure = Figure(figsize=(7.2, 1.75), layout="constrained")
    axis = figure.subplots()
    lit = np.asarray(sketch.lit(rows))
    for rank in range(4):
        axis.add_patch(Rectangle((0, rank - 0.4), longest, 0.8, color=MARK if sketch.idle else IDLE, lw=0))
    for row, is_lit in zip(rows.itertuples(), lit, strict=True):
        stages = run.schedule.stages_of(row.rank)
        colour = shade(COLOURS[Op(row.op)], stages.index(row.stage), len(stages))
        half = 0.4 if row.paired and row.op == Op.B else 0.0
        height = 0.4 if row.paired else 0.8
        box = Rectangle(
            (row.start_s, row.rank - 0.4 + half), row.end_s - row.start_s, height, ec="white", lw=0.8
        )
        box.set_facecolor(colour if is_lit else PALE)
        axis.add_patch(box)
        text = (
            f"{Op(row.op).name}{row.microbatch}"
            if row.end_s - row.start_s > longest / 40
            else str(row.microbatch)
        )
        ink = letters_on(colour) if is_lit else "#8a8a8a"
        at = ((row.start_s + row.end_s) / 2, row.rank - 0.4 + half + height / 2)
        axis.text(*at, text, ha="center", va="center", fontsize=6, color=ink)
    for rank, begin, end, words in sketch.spans:
        y = -0.62 if rank < 0 else rank + 0.46
        axis.annotate("", (begin, y), (end, y), arrowprops={"arrowstyle": "<->", "color": MARK, "lw": 1.1})
        place = {"ha": "center", "va": "bottom" if rank < 0 else "top", "fontsize": 7, "color": MARK}
        place["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.9}
        axis.text((begin + end) / 2, y - 0.04 if rank < 0 else y + 0.06, words, **place)
    if sketch.arrow is not None:
        x0, r0, x1, r1 = sketch.arrow
        axis.annotate("", (x1, r1), (x0, r0), arrowprops={"arrowstyle": "->", "color": MARK, "lw": 1.4})
    axis.set(xlim=(0, longest), ylim=(3.75, -1.1 if any(s[0] < 0 for s in sketch.spans) else -0.5))
    axis.set_yticks(range(4), [f"rank {rank}" for rank in range(4)], fontsize=7)
    axis.set_xticks([])
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    return figure


def file_of(word: str) -> str:
    """Give the name of a word's picture."""
    return f"{word.replace(' ', '-')}.png"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for word, sketch in SKETCHES.items():
        draw(sketch).savefig(FOLDER / file_of(word), dpi=110)
