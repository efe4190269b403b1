"""What the package promises as a whole: light to import, layered, free of what it must not say."""

import ast
import io
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def test_import_is_light():
    """It loads no library; each is loaded by what first needs it."""
    code = (
        "import sys; before = set(sys.modules); import pipesim\n"
        "print({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    assert python(code) == "{'pipesim'}\n"


def test_everything_but_the_executor_works_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import pipesim\n"
        "r = pipesim.Scenario.load('scenarios/two-gpus.yaml').predict()\n"
        "print(r.metrics.makespan_s > 0, 'torch' in sys.modules and sys.modules['torch'] is not None)"
    )
    assert python(code).split() == ["True", "False"]


def test_names_of_the_package_exist():
    import pipesim

    for name in pipesim.__all__:
        assert getattr(pipesim, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        pipesim.nothing_of_that_name  # noqa: B018


def test_imports_only_go_down():
    pytest.importorskip("importlinter")
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stdout


def test_no_room_outgrows_its_file():
    sizes = {path: len(path.read_text().splitlines()) for path in (ROOT / "pipesim").rglob("*.py")}
    assert {path.name: lines for path, lines in sizes.items() if lines > 500} == {}


def test_no_function_outgrows_a_page():
    long = {}
    for path in (ROOT / "pipesim").rglob("*.py"):
        for name, size in sizes_of_functions(path.read_text()):
            if size > 60:
                long[f"{path.name}: {name}"] = size
    assert long == {}


def sizes_of_functions(source):
    """Lines of code of each function: docstrings, comments and blank lines are not counted."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    code = set()
    for token in tokens:
        if token.type not in layout:
            code |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            code -= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            yield node.name, len(code & {*range(node.lineno, node.end_lineno + 1)})


def test_lines_of_code_are_counted_without_words():
    source = 'def f(x):\n    """Words."""\n    # more\n\n    return (\n        x\n    )\n'
    assert list(sizes_of_functions(source)) == [("f", 4)]


def test_the_command_line_imports_nothing_before_a_verb_is_used():
    code = (
        "import sys; from typer.testing import CliRunner; from pipesim.cli.app import app\n"
        "out = CliRunner().invoke(app, ['--help']).output\n"
        "heavy = {'numpy', 'pandas', 'pydantic', 'matplotlib', 'scipy', 'numba', 'simpy', 'jinja2', 'yaml'}\n"
        "print('compare' in out, heavy & sys.modules.keys(), "
        "[name for name in sys.modules if name.startswith('pipesim.cli.') and name != 'pipesim.cli.app'])"
    )
    assert python(code).split(maxsplit=1) == ["True", "set() ['pipesim.cli.stopping']\n"]


def test_verbs_are_listed_with_the_first_line_of_their_own_help():
    from pipesim.cli.app import _VERBS, _load

    for name, (_, words) in _VERBS.items():
        verb = _load(name)
        assert verb.name == name
        assert verb.help.splitlines()[0] == words


def test_names_are_unique():
    """No two classes of one name, nor modules, except a verb's file in cli/ and the room it calls."""
    modules, classes = defaultdict(list), defaultdict(list)
    for path in sorted((ROOT / "pipesim").rglob("*.py")):
        place = str(path.relative_to(ROOT))
        if path.parent.name != "cli":
            modules[path.parent.name if path.stem == "__init__" else path.stem].append(place)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(place)
    assert {name: places for name, places in modules.items() if len(places) > 1} == {}
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}
