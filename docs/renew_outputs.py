"""Run all that the pages of docs/ and the notebooks show, and write what it prints into them.

Of a page the blocks ``python`` and ``sh`` (commands of pipesim) run in order, in one folder with scenarios/;
a block whose first line is ``# file: NAME`` becomes that file.
"""

import ast
import io
import os
import re
import shlex
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"```([a-z]+)\n(.*?)```\n(```text\n(.*?)```\n)?", re.S)
FILE = re.compile(r"# file: (\S+)\n")
WIDTH = "80"


def run_cell(code: str, names: dict[str, object]) -> str:
    """Run a block as a notebook runs a cell; give what it prints, its last expression included."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "block", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "block", "eval"), names)
            if value is not None:
                printed.write(f"{value!r}\n")
    return printed.getvalue()


def run_commands(text: str) -> str:
    """Run lines as a shell would, each a call of pipesim; give what they print to standard output."""
    from typer.testing import CliRunner

    from pipesim.cli.app import app

    printed = ""
    for line in text.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line, comments=True) or [""]
        if program:
            assert program == "pipesim", f"{line!r} does not run pipesim"
            done = CliRunner().invoke(app, arguments, env={"COLUMNS": WIDTH}, catch_exceptions=False)
            assert done.exit_code == 0, f"{line}: exit status {done.exit_code}"
            printed += done.stdout
    return printed


def renewed_page(text: str, folder: Path) -> str:
    """Run every block in a folder, in order, and give the page with what they print under those that say."""
    (folder / "scenarios").symlink_to(ROOT / "scenarios")
    names: dict[str, object] = {}

    def renewed(block: re.Match[str]) -> str:
        language, code, printed = block[1], block[2], ""
        if named := FILE.match(code):
            Path(named[1]).write_text(code[named.end() :])
        elif language in ("python", "sh"):
            printed = run_cell(code, names) if language == "python" else run_commands(code)
        shown = f"```text\n{printed}```\n" if block[3] else ""
        return f"```{language}\n{code}```\n{shown}"

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
    for page in asked or [*PAGES, *sorted((ROOT / "notebooks").glob("*.ipynb"))]:
        if page.suffix == ".ipynb":
            renew_notebook(page)
        else:
            with tempfile.TemporaryDirectory() as folder:
                page.write_text(renewed_page(page.read_text(), Path(folder)))
