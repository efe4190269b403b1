"""`pipesim accuracy`: published measurements, predicted and compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesim.cli import options, terminal
from pipesim.errors import ScenarioError
from pipesim.files import check_outputs
from pipesim.show.amounts import optional, percent, signed_percent
from pipesim.show.blocks import Table

if TYPE_CHECKING:
    from pipesim.evidence.published import Judged, PublishedSet, Report

_SHOWN = {
    "step_time_s": ("s", 1.0),
    "layer_time_s": ("ms", 1e-3),
    "collective_time_s": ("ms", 1e-3),
    "peak_memory_bytes": ("GB", 1e9),
    "activation_bytes": ("GB", 1e9),
}


def accuracy(
    name: Annotated[str | None, typer.Argument(metavar="[SET]", help="One set; all by default.")] = None,
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Judge other rows, in the columns of the table."),
    ] = None,
    row: Annotated[
        int | None, typer.Option(metavar="N", help="With --yaml: the row, counted from 1.")
    ] = None,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print a row as a scenario file.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw predicted against measured, PNG or SVG.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict published measurements and print how far off each prediction is."""
    from pipesim.evidence.published import SETS, judge, published_set
    from pipesim.evidence.published.judge import bands_summary, by_domain
    from pipesim.evidence.published.row_pairs import pairs_summary
    from pipesim.prediction import Programs

    check_outputs(pictures=(plot,), inputs=(rows,))
    chosen = list(SETS.values()) if name is None else [published_set(name)]
    if name is None and (rows is not None or row is not None or as_yaml):
        raise ScenarioError("--rows, --row and --yaml are for one set; name it")
    if as_yaml or row is not None:
        _print_scenario(chosen[0], row, rows, as_yaml=as_yaml)
        return
    programs = Programs()
    reports = []
    with terminal.progress_bar("predicting", quiet=as_json) as progress:
        for one in chosen:
            progress(one.name)
            other = None if rows is None else one.rows(rows)
            reports.append(judge(one, other, programs=programs))
    if plot is not None:
        _plot(reports, plot)
    if as_json:
        terminal.print_json(
            {
                "sets": [report.to_dict() for report in reports],
                "rows": [line for report in reports for line in report.rows_to_dicts()],
                "domains": by_domain(reports),
                "not_fitted": bands_summary(reports),
                "differences": pairs_summary(reports),
            }
        )
        return
    if name is not None:
        terminal.show(_row_table(reports[0]))
    terminal.show(_set_table(reports))
    if domains := by_domain(reports):
        terminal.show(_domain_table(domains), *_band_words(bands_summary(reports)))
        terminal.show(*_difference_words(pairs_summary(reports)))
    for report in reports:
        terminal.show(*_remarks(report, rows_too=name is not None))


def _print_scenario(published: PublishedSet, row: int | None, file: Path | None, *, as_yaml: bool) -> None:
    import yaml

    rows = published.rows(file)
    if not as_yaml or row is None or not 1 <= row <= len(rows):
        raise ScenarioError(f"needed: --row N --yaml with N from 1 to {len(rows)}", key="--row")
    chosen = rows[row - 1]
    if chosen.scenario is None:
        raise ScenarioError(f"{chosen.label} is no scenario: {chosen.left_out}", key="--row")
    typer.echo(
        f"# {published.title}, row {row}\n# measured {_amount(published, chosen.measured)}; {chosen.source}"
    )
    scenario: dict[str, Any] = dict(chosen.scenario)
    if published.quantity == "step_time_s":
        scenario["measured_step_time"] = f"{chosen.measured:.6g} s"
    typer.echo(yaml.safe_dump(scenario, sort_keys=False, width=110), nl=False)


def _amount(published: PublishedSet, value: float) -> str:
    unit, size = _SHOWN[published.quantity]
    return f"{value / size:.4g} {unit}"


def _row_table(report: Report) -> Table:
    def cells(number: int, one: Judged) -> list[str]:
        measured = "-" if math.isnan(one.row.measured) else _amount(report.published, one.row.measured)
        predicted = "-" if one.predicted is None else _amount(report.published, one.predicted)
        label = one.row.label + (" *" if one.row.unexplained else "")
        return [str(number), label, one.role, measured, predicted, optional(one.error, signed_percent)]

    columns = ["row", "configuration", "role", "measured", "predicted", "error"]
    rows = [cells(number, one) for number, one in enumerate(report.rows, start=1)]
    return Table(report.published.title, columns, rows, num_left=3)


def _set_table(reports: list[Report]) -> Table:
    columns = ["set", "rows", "MAPE", "median", "largest", "bias", "fitted half", "other half"]
    columns += ["explained rows", "in own band", "ranked as measured", "left out", "parameters"]
    lines = []
    for report in reports:
        errors = report.errors()
        lines.append(
            [
                report.published.name,
                str(errors.num_rows),
                optional(errors.mape, percent),
                optional(errors.median, percent),
                optional(errors.max_error, percent),
                optional(errors.bias, signed_percent),
                optional(report.errors("fitted").mape, percent),
                optional(report.errors("judged").mape, percent),
                optional(report.errors(explained=True).mape, percent),
                optional(report.coverage(), percent),
                f"{report.num_groups_ranked} of {report.num_groups}" if report.num_groups else "-",
                str(len(report.rows) - errors.num_rows),
                ", ".join(report.published.fitted) or "not fitted",
            ]
        )
    return Table("", columns, lines)


def _domain_table(domains: list[dict[str, Any]]) -> Table:
    columns = ["efficiency set", "models", "rows", "MAPE", "of rows not fitted"]
    columns += ["in own band", "of rows not fitted", "median half-width"]
    keys = ("mape", "mape_not_fitted", "coverage", "coverage_not_fitted")
    rows = [
        [
            one["efficiency"],
            one["models"],
            str(one["rows"]),
            *(optional(one[key], percent) for key in keys),
            f"{one['half_width']:.3f}",
        ]
        for one in domains
    ]
    return Table("step times by what the sets cover", columns, rows, num_left=2)


def _band_words(found: dict[str, Any]) -> list[str]:
    if not found["rows"]:
        return []
    return [
        f"bands: of {found['rows']} rows that were not fitted {percent(found['coverage'])} lie in their own; "
        f"median half-width {found['half_width']:.3f}"
    ]


def _difference_words(found: dict[str, Any]) -> list[str]:
    if not found["of_unlike_scenarios"]:
        return []
    right, inside = found["ordered_right_of_unlike"], found["coverage"]
    return [
        f"differences: of {found['of_unlike_scenarios']} pairs of one model, devices and batch that differ "
        f"by more than 3 %, {percent(right)} are ordered right; {optional(inside, percent)} lie within the "
        "band of their difference"
    ]


def _remarks(report: Report, *, rows_too: bool) -> list[str]:
    reasons: dict[str, int] = {}
    for one in report.rows:
        if one.row.left_out:
            words = f"left out: {one.row.left_out}"
        elif one.row.unexplained and rows_too:
            words = f"unexplained (*): {one.row.unexplained}"
        else:
            continue
        reasons[words] = reasons.get(words, 0) + 1
    return [
        f"{report.published.name}: {count} row{'s' if count > 1 else ''} {words}"
        for words, count in reasons.items()
    ]


def _plot(reports: list[Report], path: Path) -> None:
    from pipesim.show.figures import save_figure
    from pipesim.show.figures.published_errors import plot_accuracy

    quantity = reports[0].published.quantity
    unit, size = _SHOWN[quantity]
    points = {
        report.published.name: [
            (one.row.measured / size, one.predicted / size)
            for one in report.rows
            if one.predicted is not None
        ]
        for report in reports
        if report.published.quantity == quantity
    }
    drawn = {name: pairs for name, pairs in points.items() if pairs}
    if not drawn:
        raise ScenarioError("no row has a prediction, so there is nothing to draw", file=str(path))
    title = reports[0].published.title if len(reports) == 1 else "published step times"
    save_figure(plot_accuracy(title, drawn, unit=unit), path)
