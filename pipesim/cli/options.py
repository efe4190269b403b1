"""Arguments that verbs share, and the scenario they add up to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from pipesim.api import Scenario
from pipesim.errors import ScenarioError
from pipesim.show.glossary import SCENARIO_FILE
from pipesim.units import parse_fraction

_MOST_DIGITS = 18
_USUAL_SHARE = 0.2

ScenarioFile = Annotated[
    Path | None,
    typer.Argument(metavar="SCENARIO", help=f"A scenario: {SCENARIO_FILE}; or state --ranks, --forward ..."),
]
NeededScenario = Annotated[Path, typer.Argument(metavar="SCENARIO", help=f"A scenario: {SCENARIO_FILE}.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario, by its dotted path."),
]
Timeout = Annotated[
    float,
    typer.Option(min=1, metavar="SECONDS", help="End a run in which no rank finishes an action for so long."),
]
StartupTimeout = Annotated[
    float, typer.Option(min=1, metavar="SECONDS", help="The same while ranks build their stages and meet.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Ranks = Annotated[int | None, typer.Option("--ranks", help="Without a file: pipeline ranks p.")]
Microbatches = Annotated[int | None, typer.Option("--microbatches", help="Without a file: microbatches m.")]
_ONE_OR_MORE = "of a rank, as '11.2 ms', or with commas of each stage."
Forward = Annotated[
    str | None, typer.Option("--forward", help=f"Without a file: forward time {_ONE_OR_MORE}")
]
Backward = Annotated[
    str | None, typer.Option("--backward", help=f"Without a file: backward time {_ONE_OR_MORE}")
]
P2p = Annotated[str | None, typer.Option("--p2p", help="Without a file: time of one transfer.")]
Chunks = Annotated[
    str | None,
    typer.Option("--chunks", metavar="V[,V...]", help="Chunks a rank, for schedules that leave the choice."),
]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="first|last[:SHARE]",
        help="Draw the first or the last part of the timelines, a fifth by default: last:5%.",
    ),
]
Schedules = Annotated[
    str | None,
    typer.Option(
        "--schedules",
        metavar="A,B,C",
        help="Schedules to run; all by default, but for auto, the search, in plan and plot bubble.",
    ),
]
Headroom = Annotated[
    str | None,
    typer.Option(metavar="SHARE", help="Share of the usable memory that advice leaves free; 5 % by default."),
]
Framework = Annotated[
    str | None, typer.Option(metavar="NAME", help="Advise what it runs by name: megatron, torch, deepspeed.")
]
Wide = Annotated[bool, typer.Option("--wide", help="All columns and notes, as wide as they are.")]
Assumptions = Annotated[bool, typer.Option("--assumptions", help="List what was inferred or by default.")]


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """Let parameters that are dataclasses stand for options of the command line, a field each."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(verb).parameters.items():
        shown = inspect.signature(groups[name]).parameters.values() if name in groups else [parameter]
        types = get_type_hints(groups[name], include_extras=True) if name in groups else hints
        for one in shown:
            keyword = one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=types[one.name])
            parameters[one.name] = keyword

    @wraps(verb)
    def typed(**stated: Any) -> None:
        made = {
            name: group(**{field.name: stated.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        verb(**made, **stated)

    typed.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    typed.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return typed


@dataclass(frozen=True, slots=True)
class Asked:
    """A scenario's file, or stated times in place of one."""

    scenario: ScenarioFile = None
    overrides: Overrides = None
    ranks: Ranks = None
    chunks: Chunks = None
    microbatches: Microbatches = None
    forward: Forward = None
    backward: Backward = None
    p2p: P2p = None

    def read(self) -> Scenario:
        """Load the file, or make a scenario of direct costs from the flags.

        Raises
        ------
        ScenarioError
            If there is neither, or both.
        """
        needed = {
            "--ranks": self.ranks,
            "--microbatches": self.microbatches,
            "--forward": self.forward,
            "--backward": self.backward,
        }
        stated = [flag for flag, value in {**needed, "--p2p": self.p2p}.items() if value is not None]
        if self.scenario is not None:
            if stated:
                raise ScenarioError(
                    f"{stated[0]} is for runs without a file; use --set KEY=VALUE", file=str(self.scenario)
                )
            return Scenario.load(self.scenario, *(self.overrides or ()))
        missing = [flag for flag, value in needed.items() if value is None]
        if missing:
            raise ScenarioError(f"needed: a scenario file, or {', '.join(missing)}")
        times = {
            "forward": self.forward,
            "backward": self.backward,
            "p2p": 0 if self.p2p is None else self.p2p,
        }
        first_chunks = parse_counts(self.chunks, "--chunks")[:1] or [1]
        sizes: dict[str, Any] = {"ranks": self.ranks, "microbatches": self.microbatches}
        sizes |= {key: _number_or_text(value) for key, value in times.items()}
        return Scenario.times(*(self.overrides or ()), chunks=first_chunks[0], **sizes)


@dataclass(frozen=True, slots=True)
class Advice:
    """Among what to choose, and what the choice must leave and run in."""

    schedules: Schedules = None
    headroom: Headroom = None
    framework: Framework = None

    @property
    def names(self) -> list[str]:
        """Schedules that are named; none where all are meant."""
        return parse_names(self.schedules, "--schedules")

    def overrides(self, stated: list[str] | None) -> list[str]:
        """Add a headroom that is stated apart to other overrides."""
        return [*(stated or ()), *([] if self.headroom is None else [f"headroom={self.headroom}"])]


def _number_or_text(value: Any) -> Any:
    if isinstance(value, str) and "," in value:
        return [_number_or_text(entry.strip()) for entry in value.split(",")]
    try:
        return float(value)
    except ValueError:
        return value


def parse_counts(text: str | None, flag: str) -> list[int]:
    """Read ``1,2,4``; nothing gives an empty list.

    Raises
    ------
    ScenarioError
        If an entry is not a whole number of at least 1.
    """
    counts = []
    for entry in (text or "").split(",") if text is not None else []:
        if not entry.strip().isdecimal() or len(entry) > _MOST_DIGITS or int(entry) < 1:
            raise ScenarioError(
                f"found {entry.strip()[:_MOST_DIGITS]!r}; expected whole numbers of at least 1, as 1,2,4",
                key=flag,
            )
        counts.append(int(entry))
    return counts


def parse_window(text: str | None) -> tuple[float, float]:
    """Read ``first``, ``last:5%`` or ``first:0.1`` as shares of a step; nothing is the whole step.

    Raises
    ------
    ScenarioError
        If it is anything else.
    """
    if text is None:
        return 0.0, 1.0
    which, _, share_text = text.partition(":")
    if which not in ("first", "last"):
        raise ScenarioError(
            f"found {text!r}; expected first or last, and a share of the step, such as last:5%",
            key="--window",
        )
    share = parse_fraction(_number_or_text(share_text), key="--window") if share_text else _USUAL_SHARE
    return (0.0, share) if which == "first" else (1 - share, 1.0)


def check_window(text: str | None, plot: Path | None) -> None:
    """Refuse a window that is none, or that nothing is drawn of.

    Raises
    ------
    ScenarioError
        If it is either.
    """
    parse_window(text)
    if text is not None and plot is None:
        raise ScenarioError("needs --plot, of which it is a part", key="--window")


def parse_names(text: str | None, flag: str) -> list[str]:
    """Read ``gpipe,1f1b``; where nothing is stated, an empty list.

    Raises
    ------
    ScenarioError
        If something is stated that names nothing.
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not names:
        raise ScenarioError(f"found {text!r}; needed: names with commas between them", key=flag)
    return names
