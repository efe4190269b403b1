"""The verbs in one place; each is imported when it is used."""

from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from pipesim import __version__

_VERBS = {
    "simulate": ("simulate:simulate", "Predict one step of the scenario's schedule."),
    "compare": (
        "compare:compare",
        "Predict every schedule that can run in the scenario; say why the others cannot.",
    ),
    "accuracy": (
        "accuracy:accuracy",
        "Predict published measurements and print how far off each prediction is.",
    ),
    "calibrate": (
        "calibrate:calibrate",
        "Measure costs from runs, or fit parameters to published step times or to a few of your own.",
    ),
    "execute": (
        "execute:execute",
        "Replay the scenario's schedule with PyTorch, one process a rank; under torchrun, its processes.",
    ),
    "goodput": (
        "goodput:goodput",
        "Predict how much of a run of days is training, and the best time between checkpoints.",
    ),
    "sweep": (
        "sweep:sweep",
        "Run a grid of scenarios, one row a run; goes on where an interrupted sweep stopped.",
    ),
    "plan": (
        "plan:plan_verb",
        "Find the fastest configurations that fit in memory; or the smallest cluster, with --deadline.",
    ),
    "tune": (
        "tune:tune",
        "Find the best order for measured stage times, as a CSV for torch; run it beside the one in use.",
    ),
    "validate": (
        "validate:validate",
        "Run schedules with PyTorch, calibrate on one of them, predict the others, and print the errors.",
    ),
    "report": (
        "report:report",
        "Write one page that says which schedule to run and why; the answer is printed too.",
    ),
    "import": (
        "importing:import_verb",
        "Turn another tool's files into a scenario; whatever of them it does not use is named.",
    ),
    "presets": ("presets:presets", "List presets, or show one with its source and date."),
    "plot": ("plot:app", "Draw one picture, PNG or SVG."),
    "schedule": ("schedule:app", "Show, check and convert schedules."),
}
"""Where each verb is, and its help's first line, which lists it without an import."""


class _Verbs(typer.core.TyperGroup):
    """A group whose own commands stand in for verbs: they have names and words, and know no arguments."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the verb of a name; None if there is none."""
        return _load(cmd_name) if cmd_name in self.commands else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the verbs without importing them."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, stand_in.get_short_help_str(limit)) for name, stand_in in self.commands.items()]
            )


def _load(name: str) -> Any:
    module_name, _, attribute = _VERBS[name][0].partition(":")
    module = import_module(f"pipesim.cli.{module_name}")
    verb = getattr(module, attribute)
    if isinstance(verb, typer.Typer):
        command: Any = typer.main.get_group(verb)
    else:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        alone.command(name, epilog=getattr(module, "EPILOG", None))(verb)
        command = typer.main.get_command(alone)
    command.name = name
    return command


app = typer.Typer(
    cls=_Verbs,
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


def _stand_in() -> None:
    pass


for _name, (_, _help) in _VERBS.items():
    app.command(_name, help=_help)(_stand_in)
