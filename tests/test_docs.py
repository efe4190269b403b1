"""What README and CONTRIBUTING show is what is there."""

import re
from pathlib import Path

from pipesim.cli import tables
from pipesim.cli.app import app
from pipesim.scenario import load_scenario
from pipesim.study import compare

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def words(text):
    return " ".join(text.split())


def test_the_schedule_in_the_readme_is_the_one_in_the_package():
    shown = re.search(r"^def gpipe.*?```", README, re.S | re.M)[0].removesuffix("```")
    assert words(shown) in words((ROOT / "pipesim" / "schedules" / "gpipe.py").read_text())


def test_every_verb_in_the_documents_exists():
    verbs = {command.name or command.callback.__name__ for command in app.registered_commands}
    verbs |= {group.name for group in app.registered_groups}
    documents = README + (ROOT / "CONTRIBUTING.md").read_text()
    shown = set(re.findall(r"pipesim ([a-z]+)\b", documents)) - {"compares", "predicts"}
    assert shown <= verbs


def test_every_linked_file_exists():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_worked_decision_is_what_the_command_prints():
    rows = dict(re.findall(r"^\| ([a-z0-9-]+) \| (\d \| .*) \|$", README, re.M))
    names = ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v"]
    scenario = load_scenario(ROOT / "scenarios" / "gpt3-175b-a100.yaml")
    for result in compare(scenario, names=names).results:
        m = result.metrics
        fits = "" if m.fits_memory else ": does not fit"
        shown = [str(m.num_chunks), tables.seconds(m.step_time_s), tables.percent(m.bubble_ratio)]
        shown += [tables.amount(m.peak_memory_bytes) + fits, tables.amount(m.comm_bytes)]
        assert rows[result.schedule.name] == " | ".join(shown)
