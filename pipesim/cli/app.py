"""The verbs in one place."""

import typer

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
    schedule,
    simulate,
    sweep,
    validate,
)

app = typer.Typer(
    help="Predict pipeline-parallel training: schedules, bubbles, step time, memory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("simulate")(simulate.simulate)
app.command("compare")(compare.compare)
app.command("accuracy")(accuracy.accuracy)
app.command("calibrate")(calibrate.calibrate)
app.command("execute")(execute.execute)
app.command("goodput")(goodput.goodput)
app.command("sweep")(sweep.sweep)
app.command("plan")(plan.plan_verb)
app.command("validate")(validate.validate)
app.add_typer(plot.app, name="plot")
app.add_typer(schedule.app, name="schedule")
app.add_typer(importing.app, name="import")
app.command("presets")(presets.presets)
