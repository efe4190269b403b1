"""`pipesim goodput`: failures and checkpoints over days."""

from __future__ import annotations

from pipesim import questions
from pipesim.cli import options, tables
from pipesim.cli.notes import print_notes


def goodput(
    scenario: options.ScenarioFile = None,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
    ranks: options.Ranks = None,
    chunks: options.Chunks = None,
    microbatches: options.Microbatches = None,
    forward: options.Forward = None,
    backward: options.Backward = None,
    p2p: options.P2p = None,
) -> None:
    """Predict how much of a run of days is training, and the best time between checkpoints."""
    asked = options.read_scenario(
        scenario,
        overrides,
        ranks=ranks,
        microbatches=microbatches,
        forward=forward,
        backward=backward,
        p2p=p2p,
        chunks=chunks,
    )
    result = questions.simulate_scenario(asked)
    found = questions.goodput_of(result)
    if as_json:
        tables.print_json(found.to_dict())
        return
    console = tables.console()
    console.print(tables.goodput_table(found, asked.name))
    print_notes(console, [result])
