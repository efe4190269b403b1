"""Every notebook runs, and its numbers are still those it shows; times that were measured apart."""

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))

MOST_BYTES = 200_000


def predicted(notebook):
    """Cells of code that show nothing measured."""
    return [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and "measured" not in cell.metadata.get("tags", ())
    ]


def shown(cell):
    """Text that a cell prints or returns; pictures count by their place only."""
    texts = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            texts.append(output.text)
        else:
            texts += [output.data.get(kind, "") for kind in ("text/plain", "text/markdown")]
    return texts


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_what_it_showed(path):
    """To renew what they show: python docs/renew_outputs.py."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    stored = nbformat.read(path, as_version=4)
    expected = [shown(cell) for cell in predicted(stored)]
    assert any(expected)
    assert path.stat().st_size < MOST_BYTES
    nbclient.NotebookClient(
        stored, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    assert [shown(cell) for cell in predicted(stored)] == expected
