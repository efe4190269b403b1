"""`pipesim report`: a page to decide with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pipesim.cli import options, terminal
from pipesim.errors import ScenarioError
from pipesim.files import check_outputs, write_text
from pipesim.prediction import Prediction
from pipesim.questions import Comparison, compare
from pipesim.questions.compare import rank_in_table
from pipesim.questions.judgement import judge
from pipesim.questions.memory_advice import changes_for_memory
from pipesim.reading import read_text
from pipesim.scenario import ResolvedScenario, load_scenario
from pipesim.schedules import families_named, family
from pipesim.second_process import SecondProcess
from pipesim.show.decision import Answer


@options.grouped
def report(
    scenario: options.NeededScenario,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.html", help="The page.")],
    advice: options.Advice,
    overrides: options.Overrides = None,
    chunks: options.Chunks = None,
    as_json: options.AsJson = False,
) -> None:
    """Write one page that says which schedule to run and why; the answer is printed too."""
    check_outputs(output, inputs=(scenario,))
    with SecondProcess(any(one.searches for one in families_named(advice.names))) as second:
        from pipesim.show.report import report_page

        asked = load_scenario(scenario, advice.overrides(overrides))
        if asked.schedule.name is not None:
            family(asked.schedule.name)  # an unknown one is a mistake, one that cannot run is an answer
        text = read_text(scenario)
        if not text:
            raise ScenarioError(
                "can be read only once; the page shows it, so a file is needed", file=str(scenario)
            )
        with terminal.progress_bar("comparing", quiet=as_json) as progress:
            comparison = compare(
                asked,
                schedules=advice.names,
                chunks=options.parse_counts(chunks, "--chunks"),
                framework=advice.framework,
                second=second,
                progress=progress,
            )
            answer = _answer(asked, comparison)
            progress("pictures")
            flags = [("--set", value) for value in overrides or ()]
            flags += [
                (flag, value)
                for flag, value in (
                    ("--schedules", advice.schedules),
                    ("--chunks", chunks),
                    ("--headroom", advice.headroom),
                    ("--framework", advice.framework),
                )
                if value is not None
            ]
            made = report_page(asked, answer, text=text, flags=flags, changes_for_memory=changes_for_memory)
    write_text(output, made)
    if as_json:
        terminal.print_json(answer.to_dict())
    else:
        terminal.show(*answer.sentences())


def _answer(asked: ResolvedScenario, comparison: Comparison) -> Answer[Prediction]:
    """Put the scenario's own schedule, with its options, among the results, and judge them."""
    own, judged = comparison.judged.own, comparison.judged
    results = list(comparison.results)
    if own is not None:
        # A CSV may have the name of a schedule of the registry, and is compared under it.
        order = own.schedule.to_csv() if asked.schedule.csv is not None else None
        results = [
            result
            for result in results
            if result is not own
            and (result.label != own.label or (order is not None and result.schedule.to_csv() != order))
        ]
        results.append(own)
        judged = judge(results, own=own, framework=judged.framework)
    results.sort(key=rank_in_table)
    return Answer(replace(comparison, results=tuple(results)), judged, comparison.own_refusal)
