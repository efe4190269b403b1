"""Every notebook runs, and its numbers are still those it shows; times that were measured apart."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
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


@pytest.fixture(scope="module")
def kernel():
    """One for all: modules stay loaded, names do not."""
    pytest.importorskip("nbclient")
    from jupyter_client import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=FOLDER)
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_what_it_showed(path, kernel):
    """To renew what they show: python docs/renew_outputs.py."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    stored = nbformat.read(path, as_version=4)
    expected = [shown(cell) for cell in predicted(stored)]
    assert any(expected)
    assert path.stat().st_size < MOST_BYTES
    stored.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    client = nbclient.NotebookClient(stored, km=kernel, timeout=300)
    client.execute()
    client.kc.stop_channels()
    assert [shown(cell) for cell in predicted(stored)][1:] == expected
