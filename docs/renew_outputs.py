"""Run all that docs/python.md and the notebooks show, and write what it prints into them."""

import ast
import io
import os
import re
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "python.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(```text\n(.*?)```\n)?", re.S)


def run_cell(code: str, names: dict[str, object]) -> str:
    """Run a block as a notebook runs a cell; give what it prints, its last expression included."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, PAGE.name, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), PAGE.name, "eval"), names)
            if value is not None:
                printed.write(f"{value!r}\n")
    return printed.getvalue()


def renewed_page(text: str, folder: Path) -> str:
    """Run every block in a folder, in order, and give the page with what they print under those that say."""
    (folder / "scenarios").symlink_to(ROOT / "scenarios")
    names: dict[str, object] = {}

    def renewed(block: re.Match[str]) -> str:
        printed = run_cell(block[1], names)
        shown = f"```text\n{printed}```\n" if block[2] else ""
        return f"```python\n{block[1]}```\n{shown}"

    before = Path.cwd()
    os.chdir(folder)
    try:
        return BLOCK.sub(renewed, text)
    finally:
        os.chdir(before)


def renew_notebook(path: Path) -> None:
    """Execute a notebook where it lies and keep its outputs, without who ran it and when."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    asked = [Path(name).resolve() for name in sys.argv[1:]]
    for page in asked or [PAGE, *sorted((ROOT / "notebooks").glob("*.ipynb"))]:
        if page.suffix == ".ipynb":
            renew_notebook(page)
        else:
            with tempfile.TemporaryDirectory() as folder:
                page.write_text(renewed_page(page.read_text(), Path(folder)))
