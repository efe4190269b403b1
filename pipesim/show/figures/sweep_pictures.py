"""Pictures of the field, each from the table of one sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from pipesim.errors import ScenarioError
from pipesim.reading import read_frame
from pipesim.show.figures.bubble_lines import plot_bubble
from pipesim.show.figures.canvas import add_legend, cross_out, draw_limit, entitle, form_of, new_figure
from pipesim.show.glossary import SWEEP_FILE

if TYPE_CHECKING:
    import pandas as pd

_SIZES = ("parallel.pipeline", "parallel.tensor", "parallel.context", "parallel.expert", "parallel.data")
_CONFIGURATION = (
    *("schedule", "num_chunks", *_SIZES, "batch.global", "batch.micro", "batch.microbatches", "recompute"),
    *("optimizer", "network.mode", "network.p2p", "model_name", "seq_length", "accelerator"),
    *("intra_node_bytes_per_s", "inter_node_bytes_per_s", "num_gpus", "cluster.num_nodes"),
)
"""Columns by which lines of a picture may differ."""
_SHORT = {
    "parallel.pipeline": "p",
    "parallel.tensor": "t",
    "parallel.context": "c",
    "parallel.expert": "e",
    "parallel.data": "d",
    "num_chunks": "v",
    "batch.microbatches": "m",
    "batch.micro": "micro",
    "batch.global": "global",
    "num_gpus": "GPUs",
}
_NUMBERS = ("num_microbatches", "bubble_ratio", "step_time_s", *_SIZES, "num_gpus")
_SOME_NUMBERS = ("model_tflops_per_gpu", "memory_limit_bytes", "inter_node_bytes_per_s")
"""Numbers that a row has where its costs are those of a model."""
_ALWAYS_NAMED = ("parallel.pipeline", "parallel.tensor")
_MAX_LINES = 30


def read_sweep(path: str | Path) -> pd.DataFrame:
    """Rows with a result of a sweep's table.

    Raises
    ------
    ScenarioError
        If the file cannot be read, is no sweep's table, or has no row with a result.
    """
    frame = read_frame(path)
    if "status" not in frame.columns or "step_time_s" not in frame.columns:
        raise ScenarioError(f"has no result of a sweep; needed: {SWEEP_FILE}", file=str(path))
    done = frame[frame["status"] == "ok"].reset_index(drop=True)
    if done.empty:
        raise ScenarioError("has no row with a result", file=str(path))
    for column in (*_NUMBERS, *_SOME_NUMBERS):
        _check_numbers(done, column, str(path))
    return done


def _check_numbers(frame: pd.DataFrame, column: str, file: str) -> None:
    """Turn a column into numbers, which every row has, or some rows of `_SOME_NUMBERS`.

    All are above zero; a bubble ratio may be zero.
    """
    import pandas as pd

    if column not in frame.columns:
        if column in _NUMBERS:
            raise ScenarioError("is missing; every table of a sweep has it", file=file, key=column)
        return
    numbers = pd.to_numeric(frame[column], errors="coerce").astype(float)
    above = numbers >= 0 if column == "bubble_ratio" else numbers > 0
    wrong = ~(above & (numbers < np.inf)) & (frame[column].notna() | (column in _NUMBERS))
    if wrong.any():
        raise ScenarioError(f"found {str(frame[column][wrong].iloc[0])[:60]!r}", file=file, key=column)
    frame[column] = pd.to_numeric(frame[column])


def plot_sweep(frame: pd.DataFrame, kind: str, title: str) -> Figure:
    """Draw one of `KINDS`; where several rows share a place, the best of those that fit in memory.

    Parameters
    ----------
    frame : DataFrame
        See `read_sweep`.
    kind : str
        ``bubble-microbatches``: bubble ratio against m, a line for each p and schedule.
        ``pipeline-tensor``, ``pipeline-data``: throughput of each pair of sizes, for a fixed number of GPUs.
        ``weak-scaling``: throughput of a GPU against the number of GPUs.
        ``memory-stage``: peak memory of each pipeline rank, a line for each row.
        ``network``: step time against the rate between nodes, and where the fastest configuration changes.
    title : str
        Over the picture.

    Raises
    ------
    ScenarioError
        If there is no such kind, or the sweep did not vary or measure what it shows.
    """
    if kind not in KINDS:
        raise ScenarioError(f"found {kind!r}; allowed: {', '.join(KINDS)}", key="--kind")
    if kind == _BUBBLE:
        return plot_bubble(title, _bubble_curves(frame))
    figure, (axis,) = new_figure(9.0, 5.0)
    _DRAWN[kind](axis, frame)
    axis.grid(alpha=0.3)
    entitle(axis, title)
    add_legend(figure, fontsize=7)
    return figure


def _lines(frame: pd.DataFrame, without: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """Rows that differ only in the columns of the x axis, under the names of what they have in common.

    Raises
    ------
    ScenarioError
        If they are too many to be told apart.
    """
    varied: list[str] = []
    num_lines = 1
    for column in _CONFIGURATION:
        if column in frame.columns and column not in without:
            # What follows from columns before it would make the names longer and tell nothing.
            finer = frame.groupby([*varied, column], dropna=False).ngroups
            if finer > num_lines or (finer > 1 and column in _ALWAYS_NAMED and len(set(frame[column])) > 1):
                num_lines = finer
                varied.append(column)
    if num_lines > _MAX_LINES:
        raise ScenarioError(
            f"{num_lines} lines, at most {_MAX_LINES} can be told apart; the sweep varies {', '.join(varied)}"
        )
    if not varied:
        return [("", frame)]
    lines = [(_words(varied, key), rows) for key, rows in frame.groupby(varied, sort=False, dropna=False)]
    return lines


def _words(columns: Sequence[str], values: Sequence[Any]) -> str:
    words = []
    for column, value in zip(columns, values, strict=True):
        if column.endswith("bytes_per_s"):
            words.append(f"{value / 1e9:.4g} GB/s")
        else:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words.append(f"{_SHORT[column]} {text}" if column in _SHORT else text)
    return ", ".join(words)


def _draw_best(
    axis: Any, number: int, label: str, rows: pd.DataFrame, places: Any, column: str, *, least: bool = False
) -> pd.Series[Any]:
    """Draw one line through the best row of each place; crossed out where none of a place fits in memory.

    `places` are where the rows stand on the x axis; returned is the best value of `column` by place.
    """
    fits = ~rows["fits_memory"].astype(str).eq("False") if "fits_memory" in rows.columns else True
    ranked = rows.assign(x=places, fits=fits).sort_values(["fits", column], ascending=[False, least])
    best = ranked.groupby("x")[[column, "fits"]].first()
    axis.plot(best.index, best[column].to_numpy(), label=label, **form_of(number))
    too_large = best[~best["fits"].astype(bool)]
    cross_out(axis, too_large.index.tolist(), too_large[column].tolist())
    return best[column]


def _needed(frame: pd.DataFrame, column: str, what: str) -> None:
    if column not in frame.columns or frame[column].isna().all():
        raise ScenarioError(f"the sweep has no {what}", key=column)


def _throughput(axis: Any, frame: pd.DataFrame) -> str:
    """Choose what stands for throughput: model TFLOP/s of a GPU, else microbatches a second."""
    if "model_tflops_per_gpu" in frame.columns and frame["model_tflops_per_gpu"].notna().all():
        axis.set_ylabel("model TFLOP/s per GPU")
        return "model_tflops_per_gpu"
    frame["microbatches_per_s"] = frame["num_microbatches"] * frame["parallel.data"] / frame["step_time_s"]
    axis.set_ylabel("microbatches per second, all replicas")
    return "microbatches_per_s"


def _bubble_curves(frame: pd.DataFrame) -> dict[str, list[tuple[int, float]]]:
    curves = {}
    for label, rows in _lines(frame, ["batch.microbatches", "batch.global"]):
        ordered = rows.sort_values("num_microbatches")
        counts, ratios = ordered["num_microbatches"].astype(int), ordered["bubble_ratio"]
        curves[label.replace(",", "")] = list(zip(counts.tolist(), ratios.tolist(), strict=True))
    return curves


def _pairs(first: str, second: str) -> Callable[[Any, pd.DataFrame], None]:
    def draw(axis: Any, frame: pd.DataFrame) -> None:
        if len(set(frame["num_gpus"])) > 1:
            raise ScenarioError("the sweep varies the number of GPUs; this picture needs one", key="num_gpus")
        column = _throughput(axis, frame)
        pairs = sorted(set(zip(frame[first], frame[second], strict=True)))
        if len(pairs) < 2:
            raise ScenarioError(f"the sweep varies neither {first} nor {second}")
        # The remaining size follows from the number of GPUs, and the microbatches from it.
        follows = [first, second, "parallel.data", "parallel.tensor", "batch.microbatches"]
        for number, (label, rows) in enumerate(_lines(frame, follows)):
            places = [pairs.index(pair) for pair in zip(rows[first], rows[second], strict=True)]
            _draw_best(axis, number, label, rows, places, column)
        axis.set_xticks(range(len(pairs)), [f"({a}, {b})" for a, b in pairs])
        axis.set_ylim(bottom=0)
        axis.set_xlabel(f"({first.split('.')[1]}, {second.split('.')[1]}) parallel size")

    return draw


def _weak_scaling(axis: Any, frame: pd.DataFrame) -> None:
    if len(set(frame["num_gpus"])) < 2:
        raise ScenarioError("the sweep does not vary the number of GPUs", key="num_gpus")
    column = _throughput(axis, frame)
    grows = ["num_gpus", "cluster.num_nodes", "parallel.data", "batch.global", "batch.microbatches"]
    for number, (label, rows) in enumerate(_lines(frame, grows)):
        _draw_best(axis, number, label, rows, rows["num_gpus"], column)
    _log2_ticks(axis, frame["num_gpus"])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("GPUs")


def _memory_stage(axis: Any, frame: pd.DataFrame) -> None:
    _needed(frame, "peak_memory_bytes_by_rank", "memory of ranks; it needs costs that state bytes")
    for number, (label, rows) in enumerate(_lines(frame, [])):
        stated = str(rows["peak_memory_bytes_by_rank"].iloc[0])
        try:
            of_ranks = [float(word) / 1e9 for word in stated.split()]
        except ValueError:
            raise ScenarioError(f"found {stated[:60]!r}", key="peak_memory_bytes_by_rank") from None
        axis.plot(range(len(of_ranks)), of_ranks, label=label, **form_of(number))
    axis.set_ylim(bottom=0)
    if "memory_limit_bytes" in frame.columns:
        draw_limit(axis, *sorted(frame["memory_limit_bytes"].dropna().unique() / 1e9))
    axis.set_xlabel("pipeline rank")
    axis.set_ylabel("peak memory of a device (GB)")


def _network(axis: Any, frame: pd.DataFrame) -> None:
    _needed(frame, "inter_node_bytes_per_s", "link between nodes")
    rates = sorted(frame["inter_node_bytes_per_s"].unique())
    if len(rates) < 2:
        raise ScenarioError("the sweep does not vary the link between nodes", key="cluster.inter_node")
    lines = _lines(frame, ["inter_node_bytes_per_s"])
    times = np.full((len(lines), len(rates)), np.inf)
    for number, (label, rows) in enumerate(lines):
        best = _draw_best(
            axis, number, label, rows, rows["inter_node_bytes_per_s"] / 1e9, "step_time_s", least=True
        )
        times[number] = [best.get(rate / 1e9, np.inf) for rate in rates]
    for rate in crossings(np.array(rates), times):
        axis.axvline(
            rate / 1e9, color="#9a9a9a", linewidth=0.8, linestyle=":", label=f"{rate / 1e9:.3g} GB/s"
        )
    axis.set_xscale("log")
    axis.set_xticks([rate / 1e9 for rate in rates], [f"{rate / 1e9:.3g}" for rate in rates])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set_xlabel("rate between nodes, one direction of one device (GB/s)")
    axis.set_ylabel("step time (s)")


def crossings(rates: np.ndarray[Any, Any], times: np.ndarray[Any, Any]) -> list[float]:
    """Rates at which another line becomes the fastest, between two rates by straight lines over log(rate).

    Parameters
    ----------
    rates : array, shape (n,)
        Ascending.
    times : array, shape (lines, n)
        Infinite where a line has no point.
    """
    fastest = times.argmin(axis=0)
    found = []
    for right in range(1, len(rates)):
        one, other = fastest[right - 1], fastest[right]
        ends = times[np.ix_([one, other], [right - 1, right])]
        if one == other or not np.isfinite(ends).all():
            continue
        before, after = ends[1, 0] - ends[0, 0], ends[0, 1] - ends[1, 1]
        share = before / (before + after) if before + after else 0.5
        found.append(float(np.exp(np.log(rates[right - 1]) * (1 - share) + np.log(rates[right]) * share)))
    return found


def _log2_ticks(axis: Any, values: pd.Series[Any]) -> None:
    ticks = sorted(set(values))
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


_BUBBLE = "bubble-microbatches"
_DRAWN: dict[str, Callable[[Any, pd.DataFrame], None]] = {
    "pipeline-tensor": _pairs("parallel.pipeline", "parallel.tensor"),
    "pipeline-data": _pairs("parallel.pipeline", "parallel.data"),
    "weak-scaling": _weak_scaling,
    "memory-stage": _memory_stage,
    "network": _network,
}
KINDS = (_BUBBLE, *_DRAWN)
