"""What README and CONTRIBUTING show is what is there."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel

from pipesim.cli.app import app
from pipesim.questions import compare
from pipesim.scenario import load_scenario, schema
from pipesim.show.amounts import amount, percent, seconds

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def words(text):
    return " ".join(text.split())


def test_the_schedule_in_the_readme_is_the_one_in_the_package():
    shown = re.search(r"^def gpipe.*?```", README, re.S | re.M)[0].removesuffix("```")
    assert words(shown) in words((ROOT / "pipesim" / "schedules" / "gpipe.py").read_text())


def test_the_schedule_in_contributing_runs_as_it_stands():
    shown = re.search(r"```python\n(.*?)```", CONTRIBUTING, re.S)[1]
    then = "from pipesim.schedules import Shape, generate\n"
    then += "print(len(generate('my-schedule', Shape(4, 1, 8)).stage))"
    done = subprocess.run([sys.executable, "-c", shown + then], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (str(4 * 8 * 2), "")


def test_every_verb_in_the_documents_exists():
    verbs = {command.name or command.callback.__name__ for command in app.registered_commands}
    verbs |= {group.name for group in app.registered_groups}
    documents = README + CONTRIBUTING
    shown = set(re.findall(r"pipesim ([a-z]+)\b", documents)) - {"compares", "predicts"}
    assert shown <= verbs


def test_every_linked_file_exists():
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text()):
            assert (page.parent / target).exists(), target


def test_the_list_of_scenario_keys_is_that_of_the_schema():
    """To renew it: python docs/write_scenario_reference.py."""
    writer = runpy.run_path(str(ROOT / "docs" / "write_scenario_reference.py"))
    assert (ROOT / "docs" / "scenario.md").read_text() == writer["reference"]()
    models = {
        each for each in vars(schema).values() if isinstance(each, type) and issubclass(each, BaseModel)
    }
    not_listed = {
        BaseModel,
        schema.Keys,
        schema.AnyScenarioKeys,
        schema.TorchScenarioKeys,
        schema.TorchModelKeys,
    }
    assert models - not_listed == set(writer["SECTIONS"].values())


def test_the_worked_decision_is_what_the_command_prints():
    rows = dict(re.findall(r"^\| ([a-z0-9-]+) \| (\d \| .*) \|$", README, re.M))
    names = ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v"]
    scenario = load_scenario(ROOT / "scenarios" / "gpt3-175b-a100.yaml")
    for result in compare(scenario, schedules=names).results:
        m = result.metrics
        fits = "" if m.fits_memory else ": does not fit"
        shown = [str(m.num_chunks), seconds(m.step_time_s), percent(m.bubble_ratio)]
        shown += [amount(m.peak_memory_bytes) + fits, amount(m.comm_bytes)]
        assert rows[result.schedule.name] == " | ".join(shown)
