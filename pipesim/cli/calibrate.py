"""`pipesim calibrate`: from measurements to parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipesim.cli import options, terminal
from pipesim.cli.calibrate_runs import calibrate_runs
from pipesim.errors import ScenarioError
from pipesim.files import check_outputs, write_text
from pipesim.scenario import read_yaml_mapping, scenario_from_mapping
from pipesim.show.amounts import optional, percent, seconds, signed_percent
from pipesim.show.blocks import Table
from pipesim.show.glossary import MEASURED_FILES, STEPS_FILE

if TYPE_CHECKING:
    from pipesim.evidence.calibration.presets_from_tables import PresetFit
    from pipesim.evidence.calibration.step_times import StepCalibration
    from pipesim.scenario.schema_efficiency import Domain

_ANY_SCENARIO = {
    "model": "gpt3-175b",
    "cluster": {"accelerator": "a100-sxm-80", "num_nodes": 1, "intra_node": "nvlink3"},
    "parallel": {"pipeline": 8},
    "batch": {"global": 8},
    "schedule": "1f1b",
}


def calibrate(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN...]", help=f"Costs are measured from {MEASURED_FILES}."),
    ] = None,
    published: Annotated[
        str | None,
        typer.Option(metavar="SET", help="Fit a preset to published step times, judge the fit."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(metavar="STEPS.csv", help=f"Calibrate to step times of your own cluster: {STEPS_FILE}."),
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(metavar="SCENARIO", help="With --measured: what the lines vary."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.yaml", help="Write what was found.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure costs from runs, or fit parameters to published step times or to a few of your own."""
    if sum((bool(runs), published is not None, measured is not None)) != 1:
        raise ScenarioError("needed: one of RUN..., --published SET and --measured STEPS.csv")
    check_outputs(output, inputs=(*(runs or ()), measured, scenario))
    if runs:
        calibrate_runs(runs, output, as_json=as_json)
    elif published is not None:
        _fit_published(published, output, as_json=as_json)
    elif measured is not None:
        _fit_measured(measured, scenario, output, as_json=as_json)


def _fit_published(name: str, output: Path | None, *, as_json: bool) -> None:
    from pipesim.evidence.calibration.presets_from_tables import calibrate_published
    from pipesim.evidence.calibration.recipes import recipe_of

    with terminal.progress_bar("fitting", quiet=as_json) as progress:
        found = calibrate_published(recipe_of(name), progress=progress)
    if output is not None:
        preset = found.recipe.preset
        document = {
            preset: {**found.preset_keys(), "domains": [one.model_dump(mode="json") for one in found.domains]}
        }
        _write_yaml(document, output, lambda content: {"preset": preset} | content[preset])
    if as_json:
        terminal.print_json(found.to_dict())
        return
    terminal.show(
        _parameter_table(found),
        _fit_table(found),
        _domain_table(found),
    )


def _parameter_table(found: PresetFit) -> Table:
    fits = (found.values, found.other_half, found.all_rows)
    columns = ["parameter", "fitted on one half", "on the other half", "on all rows", "smallest", "largest"]
    rows = [
        [name, *(f"{one[name]:.5g}" for one in fits), *(f"{value:.5g}" for value in found.ranges[name])]
        for name in found.recipe.parameters
    ]
    return Table(found.recipe.preset, columns, rows)


def _fit_table(found: PresetFit) -> Table:
    keys = ["mape_fitted_half", "mape_judged_half", "mape_two_halves", "mape_folds", "mape_all_rows"]
    columns = ["mean absolute error of", "rows", "fitted half", "judged half", "two halves crosswise"]
    columns += ["by folds", "fit of all rows"]
    rows = [
        [one["set"], str(one["rows"]), *(optional(one[key], percent) for key in keys)]
        for one in found.to_dict()["sets"]
    ]
    return Table("", columns, rows)


def _domain_table(found: PresetFit) -> Table:
    columns = ["domain", "rows", "models", "half-width, model seen", "not seen", "new release"]
    columns += ["pairs of schedules", "half-width", "pairs of cuts", "half-width"]
    rows = [
        [
            "MoE" if one.experts else "dense",
            str(one.rows),
            str(len(one.models)),
            *(f"{width:.3f}" for width in (one.seen, one.unseen, one.new_release)),
            *_pair_cells(one, "schedule"),
            *_pair_cells(one, "cut"),
        ]
        for one in found.domains
    ]
    return Table("nine of ten rows, log of measured over predicted", columns, rows)


def _pair_cells(domain: Domain, what: Literal["schedule", "cut"]) -> list[str]:
    number, width = domain.pairs_of(what)
    return [str(number), f"{width:.3f}" if number else "-"]


def _fit_measured(table: Path, scenario: Path | None, output: Path | None, *, as_json: bool) -> None:
    from pipesim.evidence.calibration.step_times import calibrate_steps, read_steps

    found = calibrate_steps(read_steps(table, scenario))
    if output is not None:
        found.scenario.save(output)
    if as_json:
        terminal.print_json(found.to_dict())
        return
    if output is not None:
        terminal.show(
            f"{output}: the first measured line's scenario on the cluster as calibrated; for the others, "
            f"pipesim simulate {output} --set KEY=VALUE"
        )
    terminal.show(_quantity_table(found), _forecast_table(found))
    unknown = [one.quantity.name for one in found.found if not one.identified]
    if unknown:
        terminal.show(
            f"note: these step times say little about {', '.join(unknown)}: the preset's values stay"
        )


def _quantity_table(found: StepCalibration) -> Table:
    columns = ["quantity", "value", "spread left", "spread before", "identified", "meaning"]
    rows = [
        [
            one.quantity.name,
            f"{one.value:.4g} s" if one.quantity.name == "step_overhead" else f"x {one.value:.4g}",
            percent(one.spread),
            percent(one.quantity.spread),
            "yes" if one.identified else "no",
            one.quantity.words,
        ]
        for one in found.found
    ]
    return Table("", columns, rows)


def _forecast_table(found: StepCalibration) -> Table:
    columns = ["configuration", "measured", "predicted", "error", "nine times of ten"]
    rows = [
        [
            one.step.label,
            optional(one.step.step_time_s, seconds),
            seconds(one.predicted_s),
            optional(one.error, signed_percent),
            f"{seconds(one.low_s)} to {seconds(one.high_s)}",
        ]
        for one in found.forecasts
    ]
    return Table("", columns, rows)


def _write_yaml(
    document: dict[str, Any], path: Path, efficiency_in: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Write the file once a scenario takes the efficiency in it."""
    import yaml

    def read(file: Path) -> None:
        scenario_from_mapping(_ANY_SCENARIO | {"efficiency": efficiency_in(read_yaml_mapping(file))})

    write_text(path, yaml.safe_dump(document, sort_keys=False, width=110), reader=read)
