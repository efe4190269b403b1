"""The page on Python: every block runs, in order, and what stands under it is what it prints."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.usefixtures("whole_searches")
RENEWER = runpy.run_path(str(ROOT / "docs" / "renew_outputs.py"))


def test_every_block_runs_and_prints_what_stands_under_it(tmp_path):
    """To renew it: python docs/renew_outputs.py docs/python.md."""
    pytest.importorskip("torch")
    page = (ROOT / "docs" / "python.md").read_text()
    assert len(RENEWER["BLOCK"].findall(page)) == page.count("```python") >= 20
    assert RENEWER["renewed_page"](page, tmp_path) == page
    assert {path.name for path in tmp_path.iterdir()} >= {
        "best.yaml",
        "costs.yaml",
        "gantt.png",
        "memory.png",
    }


def test_the_block_in_the_readme_runs(tmp_path):
    (block,) = re.findall(r"```python\nimport pipesim\n.*?```\n", (ROOT / "README.md").read_text(), re.S)
    assert RENEWER["renewed_page"](block, tmp_path) == block
