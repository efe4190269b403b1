"""`pipesim report`: a page to decide with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pipesim import __version__, questions
from pipesim.cli import options, tables
from pipesim.cli.report_answer import Answer
from pipesim.cli.report_sections import sections
from pipesim.errors import PipesimError, ScenarioError
from pipesim.files import check_outputs, write_text
from pipesim.questions import Comparison
from pipesim.questions.compare import rank_in_table
from pipesim.scenario import ResolvedScenario, load_scenario
from pipesim.scenario.loading import read_text
from pipesim.schedules import family
from pipesim.show.report import Section, Verbatim, page

_ABSOLUTE_FOLDER = r"/(?:[^\s/:;,'\"()]+/)+"


def report(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.html", help="The page.")],
    overrides: options.Overrides = None,
    schedules: options.Schedules = None,
    chunks: options.Chunks = None,
    as_json: options.AsJson = False,
) -> None:
    """Write one page that says which schedule to run and why; the answer is printed too."""
    check_outputs(output, inputs=(scenario,))
    asked = load_scenario(scenario, overrides or ())
    if asked.schedule.name is not None:
        family(asked.schedule.name)  # an unknown one is a mistake, one that cannot run is an answer
    text = read_text(scenario)
    if not text:
        raise ScenarioError(
            "can be read only once; the page shows it, so a file is needed", file=str(scenario)
        )
    with tables.progress_bar("comparing", quiet=as_json) as progress:
        comparison = questions.compare(
            asked,
            names=options.parse_names(schedules),
            chunks=options.parse_counts(chunks, "--chunks"),
            progress=progress,
        )
        answer = _answer(asked, comparison)
        progress("pictures")
        local = _without_folders(asked)
        flags = [("--set", value) for value in overrides or ()]
        flags += [("--schedules", schedules)] if schedules is not None else []
        flags += [("--chunks", chunks)] if chunks is not None else []
        source = Section(
            "The scenario",
            [
                "This text as a file, beside it the files that it names, and the command make this page.",
                Verbatim(text),
                Verbatim(_command(scenario, [(flag, local(value)) for flag, value in flags])),
            ],
        )
        made = page(asked.name, [*sections(answer, local), source], footer=f"Made by pipesim {__version__}.")
    write_text(output, made)
    if as_json:
        tables.print_json(answer.to_dict())
        return
    console = tables.console()
    for line in answer.sentences():
        console.print(line)


def _answer(asked: ResolvedScenario, comparison: Comparison) -> Answer:
    """Put the scenario's own schedule, with its options, among the results, and choose."""
    results, own, refusal = list(comparison.results), None, ""
    try:
        own = questions.simulate_scenario(asked)
    except PipesimError as error:
        if asked.schedule.options:  # stated for this very schedule, so a mistake rather than an answer
            raise
        refusal = str(error).splitlines()[0].rstrip(":.")
    else:
        # A CSV may have the name of a schedule of the registry, and is compared under it.
        order = own.schedule.to_csv() if asked.schedule.csv is not None else None
        results = [
            result
            for result in results
            if result.label != own.label or (order is not None and result.schedule.to_csv() != order)
        ]
        results.append(own)
    results.sort(key=rank_in_table)
    return Answer.of(replace(comparison, results=tuple(results)), own, refusal)


def _command(scenario: Path, flags: Sequence[tuple[str, str]]) -> str:
    page_name = Path(scenario.name).with_suffix(".html").name
    words = ["pipesim", "report", scenario.name, *(word for flag in flags for word in flag), "-o", page_name]
    return shlex.join(words)


def _without_folders(asked: ResolvedScenario) -> Callable[[str], str]:
    """Make a function that leaves the names of the scenario's files in a text, not where they lie."""
    files = [Path(name) for name in (asked.file, asked.schedule.csv, asked.costs_file) if name is not None]
    folders = {str(form.parent) for file in files for form in (file, file.absolute(), file.resolve())}
    known = sorted(folders - {".", "/"}, key=lambda folder: (-len(folder), folder))
    forms = [*(f"{re.escape(folder)}/" for folder in known), _ABSOLUTE_FOLDER]
    return partial(re.sub, rf"(?<![\w./-])(?:{'|'.join(forms)})", "")
