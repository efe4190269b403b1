"""`pipesim goodput`: failures and checkpoints over days."""

from __future__ import annotations

from pipesim.cli import options, terminal
from pipesim.prediction import predict
from pipesim.questions import Goodput, goodput_of
from pipesim.questions.memory_advice import changes_for_memory
from pipesim.show.amounts import hours, optional, percent, seconds
from pipesim.show.blocks import Table
from pipesim.show.remarks import inferred, notes


@options.grouped
def goodput(wanted: options.Asked, as_json: options.AsJson = False) -> None:
    """Predict how much of a run of days is training, and the best time between checkpoints."""
    asked = wanted.read()
    result = predict(asked)
    found = goodput_of(result)
    if as_json:
        terminal.print_json(found.to_dict())
        return
    terminal.show(_table(found, asked.name), *notes([result], changes_for_memory), *inferred(result))


def _table(found: Goodput, name: str) -> Table:
    """One line a number of a long run."""
    simulated = found.simulated_goodput
    young = f"{hours(found.best_interval_s)} ({hours(found.young_interval_s)})"
    quantiles = ", ".join(percent(simulated[key]) for key in ("mean", "p5", "p50", "p95"))
    lines = [
        ("step time", seconds(found.step_time_s)),
        ("devices", f"{found.num_gpus:,}"),
        ("mean time between failures", hours(found.mtbf_s)),
        ("failures a day", f"{found.failures_per_day:.3g}"),
        ("checkpoint, restart", f"{seconds(found.checkpoint_s)}, {seconds(found.restart_s)}"),
        ("checkpoint every", f"{found.interval_steps} steps, {hours(found.interval_s)}"),
        ("best interval (Young's estimate)", young),
        ("goodput expected", percent(found.goodput)),
        (f"goodput over {found.days:g} days: mean, p5, p50, p95", quantiles),
        ("steps a day", f"{found.steps_per_day:,.1f}"),
        ("tokens a day", optional(found.tokens_per_day, "{:.4g}".format)),
        ("rent a day", optional(found.usd_per_day, "{:,.0f} USD".format)),
    ]
    return Table.of_lines(name, ["", "value"], lines)
