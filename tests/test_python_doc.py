"""The page on Python: every block runs, in order, and what stands under it is what it prints."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_every_block_runs_and_prints_what_stands_under_it(tmp_path):
    """To renew it: python docs/renew_outputs.py docs/python.md."""
    pytest.importorskip("torch")
    page = (ROOT / "docs" / "python.md").read_text()
    renewer = runpy.run_path(str(ROOT / "docs" / "renew_outputs.py"))
    assert len(renewer["BLOCK"].findall(page)) == page.count("```python") >= 20
    assert renewer["renewed_page"](page, tmp_path) == page
    assert {path.name for path in tmp_path.iterdir()} >= {
        "best.yaml",
        "costs.yaml",
        "gantt.png",
        "memory.png",
    }
