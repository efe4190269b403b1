"""What README and CONTRIBUTING show is what is there."""

import re
from pathlib import Path

from pipesim.cli.app import app

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
