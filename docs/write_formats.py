"""Write docs/formats.md: what every file holds that a verb reads, in the words of --help and of refusals."""

from pathlib import Path

from pipesim.importers.readers import READERS
from pipesim.show.glossary import MEASURED_FILES, ORDER_FILE, SCENARIO_FILE, STEPS_FILE, SWEEP_FILE

TARGET = Path(__file__).with_name("formats.md")
FILES = {
    "a scenario": (SCENARIO_FILE, "every verb that takes SCENARIO; [its keys](scenario.md)"),
    "an order": (ORDER_FILE, "`schedule check`, and `schedule: {csv: FILE}` of a scenario"),
    "measurements": (MEASURED_FILES, "`calibrate RUN...`, `tune SCENARIO RUN...`"),
    "measured costs": (
        "YAML that `pipesim calibrate RUN... -o FILE` wrote",
        "`costs: {file: FILE}` of a scenario",
    ),
    "step times": (STEPS_FILE, "`calibrate --measured`"),
    "a sweep": (SWEEP_FILE, "`plot sweep`"),
    "published rows": ("CSV in the columns of the package's own tables", "`accuracy SET --rows FILE`"),
}


def written() -> str:
    """Give the page."""
    lines = [
        "# Files that are read",
        "",
        "Written by `python docs/write_formats.py`. A verb that refuses a file says the same; `/dev/stdin`",
        "is read like a file. What people write may have 1 MiB, what programs write 512 MiB.",
        "",
        "| file | what it holds | read by |",
        "|---|---|---|",
        *(f"| {name} | {words} | {verbs} |" for name, (words, verbs) in FILES.items()),
        "",
        "## Other tools' files",
        "",
        "`pipesim import FORMAT FILE... -o SCENARIO.yaml`; [how to](import.md).",
        "",
        "| FORMAT | reads | options |",
        "|---|---|---|",
        *(f"| {name} | {r.what} | {', '.join(r.options) or '-'} |" for name, r in READERS.items()),
        "",
        "## Files that are written",
        "",
        "| option | what it holds |",
        "|---|---|",
        "| `-o` of `plan`, `import` | a scenario |",
        "| `-o` of `calibrate` | measured costs; with `--published` or `--measured` a preset or a scenario |",
        "| `-o` of `execute` | a run (JSON), for `calibrate` |",
        "| `-o` of `sweep` | a table, one row a run, .csv or .parquet |",
        "| `-o` of `report` | one HTML page |",
        "| `-o` of `schedule export`, `tune` | an order |",
        "| `--trace` | trace-event JSON, for ui.perfetto.dev and chrome://tracing; [how to](trace.md) |",
        "| `--timeline` | CSV, one line an action with start and end |",
        "| `--plot`, `plot -o` | a picture, PNG or SVG |",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(written())
