"""A judgement in a few lines: what to run, the gain, the memory, what limits the step."""

from __future__ import annotations

from collections.abc import Iterator

from pipesim.show.amounts import seconds
from pipesim.show.glossary import part_name
from pipesim.show.held import held_at_most
from pipesim.show.protocols import JudgedRow, JudgedRuns, R, TimedRun, TrustedDifference

_MOST_NAMED = 5
_MOST_LIMITS = 4
_CLEARLY_UNEVEN = 0.05
"""Share above the mean from which a cut, and not the schedule, is what to change."""


def advice_lines(judged: JudgedRuns[R], refusal: str = "") -> list[str]:
    """Say what to run, the most important first; the first three lines are the answer.

    Parameters
    ----------
    judged : JudgedRuns
        What was found.
    refusal : str
        Why the scenario's own schedule cannot run, where it cannot.
    """
    lines = [use_line(judged, judged.recommended.label), _gain_line(judged, refusal), memory_line(judged)]
    lines.append(limits_line(judged))
    return [*lines, *floor_lines(judged.recommended), *faster_lines(judged)]


def run_lines(judged: JudgedRuns[R]) -> list[str]:
    """Say of a single run how long a step takes, whether it fits, and what limits it."""
    label = judged.recommended.label
    lines = [_step_words(judged, label), memory_line(judged), limits_line(judged)]
    return [*lines, *floor_lines(judged.recommended)]


def use_line(judged: JudgedRuns[R], what: str) -> str:
    """Say what to run, how long a step takes, and what runs it by name."""
    verb = "USE"
    if judged.best.standing == "does not fit":
        verb = "NOTHING FITS in the devices' memory. The least needs"
    return _step_words(judged, f"{verb} {what}")


def _step_words(judged: JudgedRuns[R], what: str) -> str:
    best, metrics = judged.recommended, judged.recommended.metrics
    text = f"{what}: {seconds(metrics.step_time_s)} a step{_band(best)}"
    if metrics.mfu is not None:
        text += f", {short_percent(metrics.mfu)} MFU"
    text += f". {runs_in(judged)}."
    if not best.synchronous:
        text += " It is asynchronous: it trains differently."
    return text


def _band(run: TimedRun) -> str:
    if run.band_s is None:
        return ""
    return f" +-{short_percent(run.band_s[1] / float(run.metrics.step_time_s) - 1)}"


def runs_in(judged: JudgedRuns[R]) -> str:
    """Say which frameworks run the recommended one, or that the one asked for does not."""
    best, wanted = judged.best, judged.framework
    if best.runs_by == "name":
        return f"Runs in {', '.join(best.run.frameworks)}"
    missing = "No framework runs it by name" if wanted is None else f"{wanted} runs none of these by name"
    if best.run.frameworks:
        return f"{missing}; {', '.join(best.run.frameworks)} runs this one"
    return f"{missing}; torch loads its CSV" if best.runs_by == "csv" else missing


def _gain_line(judged: JudgedRuns[R], refusal: str) -> str:
    best, own, found = judged.recommended, judged.own, judged.gain_difference
    if own is None or found is None:
        text = f"The scenario's own schedule cannot run: {refusal}." if refusal else ""
    elif own is best:
        text = f"It is {_whose(own)}."
    else:
        text = f"vs {own.label}, {_whose(own)}: {signed(found.share)}{between_words(found)}"
        if found.half_width is not None and not found.is_certain:
            text += ", no more than predictions can tell apart"
        if own.metrics.fits_memory is False:
            text += "; that does not fit in memory"
        text += "." if own.synchronous else "; that is asynchronous."
    return f"{text} {ties_sentence(judged)}".strip()


def _whose(own: TimedRun) -> str:
    """Say where the schedule in use is from: a file need not name one."""
    return "the default schedule" if "schedule" in own.scenario.echo else "the schedule in the scenario"


def between_words(found: TrustedDifference) -> str:
    """Say where nine in ten differences like this one lie; nothing where times are stated."""
    if found.half_width is None:
        return ""
    low, high = found.between
    return f" (nine in ten between {short_signed(low)} and {short_signed(high)})"


def ties_sentence(judged: JudgedRuns[R]) -> str:
    """Name what cannot be told apart from the recommended one; nothing where nothing ties."""
    ties = [row.run.label for row in judged.ties]
    return f"A tie{within_words(judged)}: {listed(ties)}." if ties else ""


def within_words(judged: JudgedRuns[R]) -> str:
    """Say how far apart ties may be; nothing where times are stated."""
    return f" within {short_percent(judged.tie_band)}" if judged.tie_band else ""


def difference_notes(judged: JudgedRuns[R]) -> Iterator[str]:
    """Say what the error of the differences rests on."""
    found = [row.difference for row in judged.rows if row is not judged.best]
    if judged.gain_difference is not None and judged.own is not judged.recommended:
        found.insert(0, judged.gain_difference)
    for basis in dict.fromkeys(one.basis for one in found if one.basis):
        yield f"note: differences are as sure as {basis}"


def memory_line(judged: JudgedRuns[R]) -> str:
    """Say how much of the usable memory is taken, and whether the headroom is left."""
    best, room = judged.recommended, judged.memory
    if room is None:
        peak_bytes = best.metrics.peak_memory_bytes
        if peak_bytes is not None:
            return f"MEMORY a device needs {gigabytes(peak_bytes)} GB."
        held = f"{held_at_most(best):.4g}"
        return f"MEMORY is not stated; a rank holds the activations of at most {held} microbatches."
    limit, reserve = gigabytes(room.limit_bytes), gigabytes(room.limit_bytes - room.usable_bytes)
    text = f"MEMORY {gigabytes(room.peak_bytes)} of {gigabytes(room.usable_bytes)} GB usable"
    text += f" ({limit} less {reserve} reserved)"
    if room.free_share < 0:
        return f"{text}: {'does not fit' if judged.best.standing == 'does not fit' else 'into the reserve'}."
    text += f", {short_percent(room.free_share)} free"
    if judged.best.standing == "no headroom":
        text += f": less than the headroom of {short_percent(best.scenario.kept_free.headroom)}"
    return f"{text}."


def limits_line(judged: JudgedRuns[R]) -> str:
    """Say what the step consists of."""
    parts = [
        f"{part_name(key).partition(',')[0]} {short_percent(share)}"
        for key, share in judged.limits
        if share >= 0.001
    ]
    return f"Limits: {', '.join(parts[:_MOST_LIMITS])}."


def floor_lines(run: TimedRun) -> Iterator[str]:
    """Say how long the busiest rank computes where that is clearly above the mean: no order is faster."""
    busy_s = [float(rank.busy_s) for rank in run.metrics.ranks]
    floor_s, mean_s = max(busy_s), sum(busy_s) / len(busy_s)
    if floor_s <= mean_s * (1 + _CLEARLY_UNEVEN):
        return
    text = (
        f"FLOOR {seconds(floor_s)}: rank {busy_s.index(floor_s)} computes that long, "
        f"{short_percent(floor_s / mean_s - 1)} above the mean. A balanced cut has {seconds(mean_s)} a rank: "
    )
    tries = run.scenario.model is not None and run.scenario.layers.kind == "even"
    yield text + ("--set layers=balanced tries one." if tries else "move layers first.")


def faster_lines(judged: JudgedRuns[R]) -> Iterator[str]:
    """Name what is clearly faster and yet not advised, with the reason."""
    best_s = float(judged.recommended.metrics.step_time_s)
    faster = [
        f"{row.run.label} {signed(float(row.run.metrics.step_time_s) / best_s - 1)} ({reason})"
        for row in judged.rows
        if not row.tie and float(row.run.metrics.step_time_s) < best_s and (reason := _reason(judged, row))
    ]
    if faster:
        yield f"Faster, but not advised: {listed(faster, 3)}."


def _reason(judged: JudgedRuns[R], row: JudgedRow[R]) -> str:
    if row.standing != "fits":
        return row.standing
    return "" if judged.framework is None or row.runs_by == "name" else f"not in {judged.framework}"


def listed(names: list[str], most: int = _MOST_NAMED) -> str:
    """Join names, the last of a long list as a number."""
    rest = len(names) - most
    return ", ".join(names) if rest <= 0 else f"{', '.join(names[:most])} and {rest} more"


def gigabytes(num_bytes: float) -> str:
    """Write bytes in GB with three digits."""
    return f"{num_bytes / 1e9:.3g}"


def short_percent(share: float) -> str:
    """Write a ratio in percent with two digits."""
    return f"{100 * float(share):.2g} %" if abs(share) < 0.995 else f"{100 * float(share):.0f} %"


def short_signed(share: float) -> str:
    """Write a relative difference in percent with its sign, whole numbers from 10 on."""
    return f"{100 * float(share):+.{int(abs(share) < 0.0995)}f} %"


def signed(share: float) -> str:
    """Write a relative difference in percent with one decimal."""
    return f"{100 * float(share):+.1f} %"
