"""Every notebook runs, and its numbers are still those it shows."""

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def shown(cell):
    """Text that a cell prints or returns; pictures count by their place only."""
    texts = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            texts.append(output.text)
        else:
            texts.append(output.data.get("text/plain", ""))
    return texts


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_what_it_showed(path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    stored = nbformat.read(path, as_version=4)
    expected = [shown(cell) for cell in stored.cells if cell.cell_type == "code"]
    assert any(expected)
    nbclient.NotebookClient(
        stored, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    assert [shown(cell) for cell in stored.cells if cell.cell_type == "code"] == expected
