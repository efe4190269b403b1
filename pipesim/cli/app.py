"""The verbs in one place."""

from typing import Annotated

import typer

from pipesim import __version__
from pipesim.cli import (
    accuracy,
    calibrate,
    compare,
    execute,
    goodput,
    importing,
    plan,
    plot,
    presets,
    report,
    schedule,
    simulate,
    sweep,
    validate,
)
from pipesim.show import glossary

app = typer.Typer(
    help="Predict pipeline-parallel training: schedules, bubbles, step time, memory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pipesim {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command("simulate", epilog=glossary.epilog(with_parts=True))(simulate.simulate)
app.command("compare", epilog=glossary.epilog())(compare.compare)
app.command("accuracy")(accuracy.accuracy)
app.command("calibrate")(calibrate.calibrate)
app.command("execute")(execute.execute)
app.command("goodput")(goodput.goodput)
app.command("sweep")(sweep.sweep)
app.command("plan")(plan.plan_verb)
app.command("validate")(validate.validate)
app.command("report")(report.report)
app.add_typer(plot.app, name="plot")
app.add_typer(schedule.app, name="schedule")
app.command("import", epilog=importing.epilog())(importing.import_verb)
app.command("presets")(presets.presets)
