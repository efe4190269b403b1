"""A plan in sentences that a buyer can use."""

from __future__ import annotations

from pipesim.questions.planning.budget import DAY_S, Budget
from pipesim.questions.planning.losses import Losses
from pipesim.questions.planning.plan import Choice, Plan
from pipesim.show.advice_lines import (
    between_words,
    gigabytes,
    limits_line,
    memory_line,
    signed,
    use_line,
    within_words,
)
from pipesim.show.amounts import seconds
from pipesim.show.blocks import Table
from pipesim.show.comparison_lines import frameworks_words

_LOSS_WORDS = {
    "recompute_s": "recomputing",
    "communication_s": "exposed communication",
    "imbalance_s": "imbalance",
    "bubble_s": "idle of the busiest rank",
    "sync_s": "gradient synchronisation",
    "optimizer_s": "optimizer",
}


def plan_lines(found: Plan, num_tokens: float | None) -> list[str]:
    """Say what to run, how sure that is, how full the devices are, what limits it, and what it costs."""
    best = found.recommended
    lines = [use_line(found.judged, layout_words(best)), _certain_line(found)]
    lines += [memory_line(found.judged), limits_line(found.judged)]
    return [*lines, _budget_words(best, num_tokens or 1e12)]


def layout_words(choice: Choice) -> str:
    """Name everything that a choice chose."""
    words = [_sizes(choice), f"{choice.result.label}, micro {choice.candidate.cut.micro}"]
    if choice.result.scenario.parallel.sequence_parallel:
        words.append("sequence parallel")
    words.append(f"{choice.result.scenario.optimizer} optimizer")
    recompute = choice.candidate.recompute
    words.append("nothing recomputed" if recompute == "none" else f"{recompute} recompute")
    return ", ".join(words)


def _sizes(choice: Choice) -> str:
    cut = choice.candidate.cut
    sizes = [("t", cut.tensor), ("p", cut.pipeline), ("c", cut.context), ("e", cut.expert), ("d", cut.data)]
    return " ".join(f"{letter}{size}" for letter, size in sizes if size > 1 or letter in "tpd")


def _certain_line(found: Plan) -> str:
    text = f"{found.certainty[:1].upper()}{found.certainty[1:]}."
    ties = [str(found.choices.index(choice) + 1) for choice in found.ties]
    if ties:
        rows = f"Row{'s' * (len(ties) > 1)} {', '.join(ties)}"
        tie = "tie" if len(ties) > 1 else "ties"
        text += f" {rows} {tie} with it:{within_words(found.judged)}."
    slower = (row for row in found.judged.rows if not row.tie and row.difference.share > 0)
    if (row := next(slower, None)) is not None:
        number = [choice.result for choice in found.choices].index(row.run) + 1
        text += f" Row {number} takes {signed(row.difference.share)}{between_words(row.difference)}."
    if found.recommended is not found.choices[0]:
        by_name = found.judged.best.runs_by == "name"
        text += f" Advised of these as {'a framework runs it by name' if by_name else 'torch loads its CSV'}."
    return text


def short_choice_table(found: Plan) -> Table:
    """One line a choice, in few columns; what all of them share is not repeated."""
    columns = ["", "layout", "schedule", "step", "memory", "runs in", " "]
    shared = [_shared_words(choice) for choice in found.choices]
    rows = []
    for number, (choice, words) in enumerate(zip(found.choices, shared, strict=True), start=1):
        mark = "<-" if choice is found.recommended else "=" if choice in found.ties else ""
        layout = f"{_sizes(choice)} b{choice.candidate.cut.micro}"
        rows.append(
            [
                str(number),
                layout if len(set(shared)) == 1 else f"{layout}{words}",
                choice.result.label,
                seconds(choice.step_time_s),
                f"{gigabytes(choice.result.memory or 0.0)} GB",
                frameworks_words(choice.result),
                mark,
            ]
        )
    return Table("", columns, rows, num_left=3, ruled=False)


def _shared_words(choice: Choice) -> str:
    scenario = choice.result.scenario
    words = ["sp"] if scenario.parallel.sequence_parallel else []
    words += [scenario.optimizer] if scenario.optimizer != "plain" else []
    words += [f"{choice.candidate.recompute} rc"] if choice.candidate.recompute != "none" else []
    return "".join(f" {word}" for word in words)


def recommendation(choice: Choice, num_tokens: float = 1e12) -> str:
    """Say what to run, how fast it is, how full the devices are, and what the tokens cost."""
    scenario, metrics, cut = choice.result.scenario, choice.result.metrics, choice.candidate.cut
    model, cluster = scenario.model, scenario.cluster
    assert model is not None
    assert cluster is not None
    sizes = [f"tensor {cut.tensor}", f"pipeline {cut.pipeline}", f"data {cut.data}"]
    sizes += [f"context {cut.context}"] if cut.context > 1 else []
    sizes += [f"expert {cut.expert}"] if cut.expert > 1 else []
    shared = ", sequence parallel" if scenario.parallel.sequence_parallel else ""
    recompute = (
        "nothing recomputed"
        if choice.candidate.recompute == "none"
        else f"{choice.candidate.recompute} recompute"
    )
    text = (
        f"{model.name} on {cluster.device_words(cut.pipeline)}: {' x '.join(sizes)}{shared}, "
        f"{choice.result.label}, micro-batch {cut.micro}, {recompute}: {choice.step_time_s:.3g} s a step of "
        f"{scenario.batch.global_size} sequences"
    )
    if metrics.tokens_per_s is not None:
        text += f", {metrics.tokens_per_s / cluster.num_gpus:,.0f} tokens/s per GPU"
    if metrics.mfu is not None:
        text += f" ({100 * metrics.mfu:.0f} % of the peak)"
    if metrics.peak_memory_bytes is not None:
        kinds: dict[str, tuple[float, float]] = {}
        for rank, device in zip(metrics.ranks, cluster.accelerators(cut.pipeline), strict=True):
            most, _ = kinds.get(device.name, (0.0, 0.0))
            kinds[device.name] = max(most, rank.peak_memory_bytes or 0.0), device.memory_bytes
        used = [f"{peak / 1e9:.0f} of {limit / 1e9:.0f} GB" for peak, limit in kinds.values()]
        names = [f" on {name}" if len(kinds) > 1 else " in use" for name in kinds]
        text += f", {' and '.join(map(''.join, zip(used, names, strict=True)))}"
    return f"{text}. {_budget_words(choice, num_tokens)}"


def _budget_words(choice: Choice, num_tokens: float) -> str:
    budget = Budget.of(choice, num_tokens)
    text = f"{amount(num_tokens)} tokens take {budget.seconds / DAY_S:,.3g} days without interruption"
    if budget.usd is not None:
        text += f" and cost {amount(budget.usd)} USD at {price_words(choice)}"
    if budget.mwh is not None:
        text += f"; the GPUs draw {amount(budget.mwh)} MWh at most"
    return text + "."


def price_words(choice: Choice) -> str:
    """Price of a device and hour, and where it is from."""
    scenario = choice.result.scenario
    price, cluster = scenario.price_usd_per_gpu_hour, scenario.cluster
    if price is None or cluster is None:
        return "no price"
    if "price_per_gpu_hour" not in scenario.echo:
        return f"{price:g} USD a GPU-hour (as stated)"
    _, _, source = scenario.echo["price_per_gpu_hour"].partition("(")
    return f"{price:g} USD a GPU-hour ({source.removesuffix(')')}, read {cluster.accelerator.date})"


def main_losses(losses: Losses, step_time_s: float, least: float = 0.01) -> str:
    """Name the losses of at least a share `least` of the step, the largest first."""
    shares = {words: getattr(losses, name) / step_time_s for name, words in _LOSS_WORDS.items()}
    large = sorted((item for item in shares.items() if item[1] >= least), key=lambda item: -item[1])
    return ", ".join(f"{words} {100 * share:.1f} %" for words, share in large) or "nothing of note"


def amount(value: float) -> str:
    """Write a number in words: a trillion, 1.3 million."""
    for words, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {words}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
