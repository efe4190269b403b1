"""`pipesim plan`: the best way to cut a model over a cluster, and how large it must be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from pipesim.cli import options, terminal
from pipesim.cli.sweep import Workforce
from pipesim.errors import ScenarioError
from pipesim.files import check_outputs
from pipesim.questions.memory_advice import changes_for_memory
from pipesim.questions.planning import Plan, plan
from pipesim.questions.planning.budget import DAY_S, Budget, ClusterSize, smallest_cluster
from pipesim.questions.planning.launch_flags import (
    DEEPSPEED_FILE,
    deepspeed_settings,
    launch_flags,
    launch_notes,
)
from pipesim.questions.planning.plan import DEFAULT_TOP
from pipesim.questions.planning.words import (
    main_losses,
    plan_lines,
    price_words,
    recommendation,
    short_choice_table,
)
from pipesim.scenario import ResolvedScenario, load_scenario
from pipesim.schedules.frameworks import FRAMEWORKS
from pipesim.show.advice_lines import difference_notes
from pipesim.show.amounts import amount, optional, percent, seconds, time_range
from pipesim.show.blocks import Table
from pipesim.show.remarks import inferred, notes, urgent_notes
from pipesim.show.text_layout import command_lines
from pipesim.units import parse_time_s

OBJECTIVES = ("step_time", "tokens_per_s_per_gpu", "cost")
_NUM_REASONS = 8
_SUFFIXES = {"k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class Sizing:
    """What is trained on, and how large a cluster that may take."""

    tokens: Annotated[str | None, typer.Option(help="Tokens to train on, as 300B or 1T.")] = None
    deadline: Annotated[
        str | None, typer.Option(help="Time for them, as '30 days': finds the smallest cluster.")
    ] = None
    max_nodes: Annotated[
        int | None, typer.Option(min=1, help="Find the smallest cluster of at most so many nodes.")
    ] = None

    @property
    def num_tokens(self) -> float | None:
        """Tokens, where they are stated."""
        return None if self.tokens is None else _number_of_tokens(self.tokens)

    def sizes(self, asked: ResolvedScenario, **stated: Any) -> list[ClusterSize]:
        """Plan for ever larger clusters, up to the smallest that does; none where no size is asked for."""
        if self.deadline is None and self.max_nodes is None:
            return []
        return smallest_cluster(
            asked,
            num_tokens=self.num_tokens,
            deadline_s=None if self.deadline is None else _seconds(self.deadline),
            max_nodes=self.max_nodes or (asked.cluster.num_nodes if asked.cluster else 1),
            **stated,
        )


@options.grouped
def plan_verb(
    scenario: options.NeededScenario,
    advice: options.Advice,
    sizing: Sizing,
    workforce: Workforce,
    top: Annotated[int, typer.Option(min=1, help="How many configurations to show.")] = DEFAULT_TOP,
    objective: Annotated[str, typer.Option(help=f"What to rank by: {', '.join(OBJECTIVES)}.")] = "step_time",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="BEST.yaml", help="Write the advised choice as a scenario."),
    ] = None,
    wide: options.Wide = False,
    assumptions: options.Assumptions = False,
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Refine no further after so long; what is certain is said."),
    ] = None,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Draw step time, memory and cost, PNG or SVG.")] = None,
) -> None:
    """Find the fastest configurations that fit in memory; or the smallest cluster, with --deadline.

    What it chooses (parallel, micro-batch, schedule, recompute, sequence parallelism, whether the optimizer's
    state is shared out) is not read from the scenario; model, cluster, global batch and the rest are.
    """
    if time_limit is not None and not time_limit > 0:
        raise ScenarioError(f"found {time_limit:g}; needed: seconds above zero", key="--time-limit")
    check_outputs(output, pictures=(plot,), inputs=(scenario,))
    overrides = advice.overrides(overrides)
    asked = load_scenario(scenario, overrides, uncut=True)
    wanted = _objectives(objective, asked)
    num_tokens = sizing.num_tokens
    stated: dict[str, Any] = {"schedules": advice.names, "framework": advice.framework, "top": top}
    stated |= {"num_workers": workforce.workers, "time_limit_s": time_limit}
    with workforce.executor() as executor, terminal.progress_bar("planning", quiet=as_json) as progress:
        stated |= {"executor": executor, "progress": progress}
        sizes = sizing.sizes(asked, **stated)
        best = sizes[-1].best if sizes else plan(asked, **stated)
    assert best is not None
    found = best
    if output is not None:
        found.best.save(output)
    if plot is not None:
        _draw(found, plot)
    if as_json:
        terminal.print_json(_document(found, sizes, wanted, num_tokens))
        return
    _show(found, sizes, num_tokens, wide=wide, assumptions=assumptions)
    changes = [f"--set {quote(text)}" for text in (*overrides, *found.recommended.overrides())]
    typed = ["to type it:", "pipesim simulate", quote(str(scenario)), *changes]
    terminal.show(*command_lines(typed, terminal.width()), wide=True)
    if output is not None:
        terminal.show(f"{output}: the advised choice; pipesim simulate {quote(str(output))}")


def _show(
    found: Plan, sizes: list[ClusterSize], num_tokens: float | None, *, wide: bool, assumptions: bool
) -> None:
    best = found.recommended
    terminal.show(found.scenario.name, *plan_lines(found, num_tokens), "")
    if sizes:
        terminal.show(_size_table(sizes, num_tokens))
    terminal.show(
        short_choice_table(found),
        "(tensor, pipeline, context, expert, data, b: sequences of a microbatch; <- advised; = a tie)",
        "",
    )
    for name in FRAMEWORKS if found.judged.framework is None else (found.judged.framework,):
        if flags := launch_flags(best.result, name):
            terminal.show(*command_lines([f"{name}:", *flags], terminal.width()), wide=True)
            if name == "DeepSpeed":
                terminal.show(f"{DEEPSPEED_FILE}: {json.dumps(deepspeed_settings(best.result))}")
        terminal.show(*launch_notes(best.result, name))
    terminal.show(*urgent_notes([best.result], changes_for_memory))
    if wide:
        terminal.show(*_details(found), wide=True)
    if assumptions:
        terminal.show(*inferred(best.result))
    more = [] if wide else ["losses, rejections and more columns: --wide"]
    terminal.show("   ".join([*more, f"{len(best.result.scenario.echo)} values inferred: --assumptions"]))


def _objectives(text: str, asked: ResolvedScenario) -> list[str]:
    names = [name.replace("-", "_") for name in options.parse_names(text, "--objective")]
    for name in names:
        if name not in OBJECTIVES:
            raise ScenarioError(f"found {name!r}; allowed: {', '.join(OBJECTIVES)}", key="--objective")
    if "cost" in names and asked.price_usd_per_gpu_hour is None:
        raise ScenarioError("missing; a ranking by cost needs it", file=asked.file, key="price_per_gpu_hour")
    return names


def _number_of_tokens(text: str) -> float:
    number, size = text.strip(), 1.0
    if number and number[-1] in _SUFFIXES:
        number, size = number[:-1], _SUFFIXES[number[-1]]
    try:
        value = float(number) * size
    except ValueError:
        value = 0.0
    if not 0 < value < 1e18:
        raise ScenarioError(f"found {text!r}; expected a number of tokens, as 300B or 1e12", key="--tokens")
    return value


def _seconds(text: str) -> float:
    number, _, unit = text.strip().partition(" ")
    try:
        if unit in ("d", "day", "days"):
            return float(parse_time_s(f"{number} s", positive=True)) * DAY_S
        return float(parse_time_s(text, positive=True))
    except ScenarioError as error:
        raise ScenarioError(f"{error.message}; or days, as '30 days'", key="--deadline") from None


def _draw(found: Plan, path: Path) -> None:
    from pipesim.show.figures import save_figure
    from pipesim.show.figures.pareto import Point
    from pipesim.show.figures.plan_points import plot_plan

    timed = [Point("", one.least_step_s, one.peak_memory_bytes / 1e9) for one in found.timed]
    peaks_bytes = [choice.result.metrics.peak_memory_bytes or 0.0 for choice in found.choices]
    chosen = [
        Point(choice.label, choice.least_step_s, peak_bytes / 1e9)
        for choice, peak_bytes in zip(found.choices, peaks_bytes, strict=True)
    ]
    first = found.choices[0]
    limit_bytes, usd = first.result.costs.memory_limit_bytes, first.result.metrics.usd_per_step
    figure = plot_plan(
        found.scenario.name,
        timed,
        chosen,
        limit_gb=None if limit_bytes is None else limit_bytes / 1e9,
        usd_per_s=None if usd is None else usd / first.step_time_s,
    )
    save_figure(figure, path)


def _document(
    found: Plan, sizes: list[ClusterSize], objective: list[str], num_tokens: float | None
) -> dict[str, Any]:
    first = found.recommended
    document = found.to_dict() | {
        "objective": objective,
        "num_gpus": first.result.scenario.parallel.num_gpus,
        "price": price_words(first),
        "launch": {name: flags for name in FRAMEWORKS if (flags := launch_flags(first.result, name))},
        "launch_notes": {name: notes for name in FRAMEWORKS if (notes := launch_notes(first.result, name))},
        "recommendation": recommendation(first, num_tokens or 1e12),
    }
    if num_tokens is not None:
        document["budget"] = Budget.of(first, num_tokens).to_dict()
    if sizes:
        document["sizes"] = [size.to_dict(num_tokens) for size in sizes]
    return document


def _details(found: Plan) -> Iterator[str | Table]:
    first = found.choices[0]
    yield choice_table(found)
    for number, choice in enumerate(found.choices, start=1):
        behind = percent(choice.step_time_s / first.step_time_s - 1)
        slower = "" if number == 1 else f"; {behind} slower than the first"
        yield f"{number} loses: {main_losses(choice.losses, choice.step_time_s)}{slower}"
    yield f"{found.num_infeasible:,} rejected:"
    for reason, count in list(found.rejected.items())[:_NUM_REASONS]:
        yield f"  {count:,}: {reason}"
    if len(found.rejected) > _NUM_REASONS:
        rest = sum(list(found.rejected.values())[_NUM_REASONS:])
        yield f"  {rest:,}: other reasons (--json lists them)"
    yield from notes([found.recommended.result], changes_for_memory)
    yield from difference_notes(found.judged)


def choice_table(found: Plan) -> Table:
    """One line a choice, with all that it chose."""
    columns = ["", *"tpced", "sequence parallel", "micro", "m", "schedule", "recompute", "step time"]
    columns += ["nine times of ten", "tokens/s/GPU"]
    columns += ["MFU", "bubble ratio", "memory", "USD a step", "pareto"]
    rows = []
    for number, choice in enumerate(found.choices, start=1):
        cut, metrics = choice.candidate.cut, choice.result.metrics
        per_gpu = (metrics.tokens_per_s or 0.0) / choice.result.scenario.parallel.num_gpus
        rows.append(
            [
                str(number),
                *map(str, (cut.tensor, cut.pipeline, cut.context, cut.expert, cut.data)),
                "yes" if choice.result.scenario.parallel.sequence_parallel else "no",
                str(cut.micro),
                str(metrics.num_microbatches),
                choice.result.label,
                choice.candidate.recompute,
                seconds(choice.step_time_s),
                optional(choice.result.band_s, time_range),
                f"{per_gpu:,.0f}",
                optional(metrics.mfu, percent),
                percent(metrics.bubble_ratio),
                amount(metrics.peak_memory_bytes or 0.0),
                optional(metrics.usd_per_step, "{:.3g}".format),
                "yes" if choice.pareto else "no",
            ]
        )
    return Table(found.scenario.name, columns, rows)


def _size_table(sizes: list[ClusterSize], num_tokens: float | None) -> Table:
    rows = []
    for size in sizes:
        if size.best is None:
            rows.append([str(size.num_nodes), size.reason, str(size.num_gpus), "-", "-", "-"])
            continue
        choice = size.best.recommended
        budget = None if num_tokens is None else Budget.of(choice, num_tokens)
        days = "-" if budget is None else f"{budget.seconds / DAY_S:,.3g}"
        usd = "-" if budget is None or budget.usd is None else f"{budget.usd:,.0f}"
        step = seconds(choice.step_time_s)
        rows.append([str(size.num_nodes), choice.label, str(size.num_gpus), step, days, usd])
    return Table("", ["nodes", "best", "GPUs", "step time", "days", "USD"], rows, num_left=2)
