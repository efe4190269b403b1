"""The pages of docs/: every block runs, outputs are what is printed, words are those of the package."""

import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipesim.cli.app import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RENEWER = runpy.run_path(str(DOCS / "renew_outputs.py"))
TESTED_ELSEWHERE = {"python.md"}
PAGES = sorted(page.name for page in DOCS.glob("*.md") if page.name not in TESTED_ELSEWHERE)
WITH_BLOCKS = [name for name in PAGES if "```" in (DOCS / name).read_text()]


@pytest.mark.usefixtures("whole_searches")
@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_every_block_runs_and_prints_what_stands_under_it(tmp_path, name):
    """To renew it: python docs/renew_outputs.py docs/NAME."""
    if name == "calibrate.md":
        pytest.importorskip("torch")
    page = (DOCS / name).read_text()
    assert 2 * len(RENEWER["BLOCK"].findall(page)) + 2 * page.count("```text") == page.count("```")
    for language, code, *_ in RENEWER["BLOCK"].findall(page):
        assert language in ("sh", "python") or RENEWER["FILE"].match(code), code
    assert RENEWER["renewed_page"](page, tmp_path) == page


def test_a_block_that_fails_or_is_no_command_is_found(tmp_path):
    for wrong in ("pipesim compare nowhere.yaml\n", "rm -r x\n"):
        folder = tmp_path / str(len(wrong))
        folder.mkdir()
        with pytest.raises(Exception, match=r"nowhere|does not run pipesim"):
            RENEWER["renewed_page"](f"```sh\n{wrong}```\n", folder)


def test_the_page_of_formats_is_what_the_verbs_say():
    """To renew it: python docs/write_formats.py."""
    assert (DOCS / "formats.md").read_text() == runpy.run_path(str(DOCS / "write_formats.py"))["written"]()


def test_every_word_of_the_glossary_has_a_picture():
    """To renew them: python docs/write_glossary_pictures.py."""
    drawn = runpy.run_path(str(DOCS / "write_glossary_pictures.py"))
    words = re.findall(r"^## (.*)$", (DOCS / "glossary.md").read_text(), re.M)
    assert set(words) == set(drawn["SKETCHES"])
    shown = re.findall(r"\]\(glossary/(.*?)\)", (DOCS / "glossary.md").read_text())
    assert shown == [drawn["file_of"](word) for word in words]
    assert {path.name for path in (DOCS / "glossary").iterdir()} == set(shown)


def test_numbers_in_the_pictures_of_the_glossary_are_those_of_1f1b():
    """Of 4 ranks and 4 microbatches, F 1 and B 2: (m + p - 1)(F + B) = 21, of which a rank computes 12."""
    drawn = runpy.run_path(str(DOCS / "write_glossary_pictures.py"))
    _, run = drawn["timeline"](drawn["SKETCHES"]["bubble ratio"])
    assert (run.makespan_s, run.bubble_ratio) == (21, pytest.approx(3 / 7))
    assert run.metrics.bubble_overhead == pytest.approx(9 / 12)


def test_every_verb_is_named_on_a_page_and_every_page_is_in_the_menu():
    text = "".join((DOCS / name).read_text() for name in [*PAGES, *TESTED_ELSEWHERE])
    verbs = {command.name for command in app.registered_commands} | {g.name for g in app.registered_groups}
    assert [verb for verb in sorted(verbs) if not re.search(rf"\b{verb}\b", text)] == []
    menu = (ROOT / "mkdocs.yml").read_text()
    assert {*re.findall(r": ([a-z_]+\.md)$", menu, re.M)} == {*PAGES, *TESTED_ELSEWHERE}


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install '.[docs]'")
def test_the_site_is_built_by_one_command_and_loads_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(ROOT / "mkdocs.yml"), "-d"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for page in tmp_path.glob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*", page.read_text()
        )
        assert loaded == []
    assert not list(tmp_path.rglob("*.py"))
