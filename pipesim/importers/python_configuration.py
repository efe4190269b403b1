"""Configurations that are written as Python; nothing of it is run.

A function of such a file builds mappings out of calls with keywords and assigns to their attributes.
Literals, plain arithmetic, functions of the same file and attributes of what was built are followed; all else
is `Unknown`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.literals import assignments, evaluated, or_unknown, parsed
from pipesim.importers.request import Request
from pipesim.scenario.settings import Unknown

MAX_DEPTH = 20
MAX_CALLS = 2000
CALLED, ARGUMENTS = "called", "arguments"
"""Where a mapping that stands for a call holds the function's name and its arguments without a keyword."""


class PythonConfiguration:
    """A file's functions, evaluated on demand.

    Parameters
    ----------
    text : str
        Python source.
    file : str
        For messages.
    not_followed : dict
        Receives the conditions and loops that were passed over, by line.
    """

    def __init__(self, text: str, *, file: str) -> None:
        self._module = parsed(text, file=file)
        self._file = file
        self._names = assignments(self._module.body, {})
        self._functions = {node.name: node for node in self._module.body if isinstance(node, ast.FunctionDef)}
        self._calls = 0
        self.not_followed: dict[str, str] = {}

    @property
    def functions(self) -> list[str]:
        """Names of the file's functions that are not private."""
        return [name for name in self._functions if not name.startswith("_")]

    def result_of(self, name: str) -> dict[str, Any]:
        """Follow a function, and give the mapping that it returns.

        Raises
        ------
        ScenarioError
            It is not there, or returns no such thing.
        """
        result = self._run(self._functions[name], {}, 0)
        if not isinstance(result, dict):
            raise ScenarioError("returns no configuration that can be read", file=self._file, key=name)
        return result

    def _run(self, function: ast.FunctionDef, given: Mapping[str, Any], depth: int) -> Any:
        self._calls += 1
        if depth > MAX_DEPTH or self._calls > MAX_CALLS:
            raise ScenarioError("calls are nested without end", file=self._file, key=function.name)
        names = dict(self._names)
        arguments = [*function.args.posonlyargs, *function.args.args]
        defaults = function.args.defaults
        pairs = [*zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)]
        pairs += [
            (argument, default)
            for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
            if default is not None
        ]
        for argument in (*arguments, *function.args.kwonlyargs):
            names[argument.arg] = Unknown(f"the argument {argument.arg}")
        names |= {argument.arg: or_unknown(default, names) for argument, default in pairs}
        names |= {key: value for key, value in given.items() if key in names}
        for statement in function.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self._value(statement.value, names, depth)
            self._follow(statement, names, depth)
        return None

    def _follow(self, statement: ast.stmt, names: dict[str, Any], depth: int) -> None:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                self._assign(target, self._value(statement.value, names, depth), names)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            called = statement.value.func
            self._value(statement.value, names, depth)
            if not (isinstance(called, ast.Name) and called.id in self._functions):
                self._pass_over(statement)
        elif not isinstance(statement, (ast.Expr, ast.Assert, ast.Import, ast.ImportFrom, ast.Pass)):
            self._pass_over(statement)

    def _pass_over(self, statement: ast.stmt | ast.Call) -> None:
        head = ast.unparse(statement).splitlines()[0]
        self.not_followed[f"line {statement.lineno}"] = f"{head[:80]} is not followed"

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
            return
        path: list[str] = []
        while isinstance(target, ast.Attribute):
            path.insert(0, target.attr)
            target = target.value
        here = names.get(target.id) if isinstance(target, ast.Name) else None
        if not path or not isinstance(here, dict):
            return
        for part in path[:-1]:
            below = here.get(part)
            if not isinstance(below, dict):
                below = here[part] = {}
            here = below
        here[path[-1]] = value

    def _value(self, node: ast.expr, names: dict[str, Any], depth: int) -> Any:
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id == "dict"):
            return self._call(node, names, depth)
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value, names, depth)
            if isinstance(owner, dict):
                return owner.get(node.attr, Unknown(ast.unparse(node)[:80]))
            if isinstance(node.value, ast.Name) and node.value.id == "torch":
                return node.attr
            return Unknown(ast.unparse(node)[:80])
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(item, names, depth) for item in node.elts]
        try:
            return evaluated(node, names)
        except (ValueError, TypeError, ArithmeticError):
            return Unknown(f"the expression {ast.unparse(node)[:80]}")

    def _call(self, node: ast.Call, names: dict[str, Any], depth: int) -> Any:
        words = {word.arg: self._value(word.value, names, depth) for word in node.keywords if word.arg}
        plain = [self._value(argument, names, depth) for argument in node.args]
        if isinstance(node.func, ast.Name) and node.func.id in self._functions:
            function = self._functions[node.func.id]
            given = dict(zip([argument.arg for argument in function.args.args], plain, strict=False))
            return self._run(function, given | words, depth + 1)
        if not plain and not words and ast.unparse(node.func).rpartition(".")[2].strip("_")[:1].islower():
            self._pass_over(node)
        before: dict[str, Any] = {}
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            inner = self._value(node.func.value, names, depth)
            before = inner if isinstance(inner, dict) else {}
        name = ast.unparse(node.func) if not before else before.get(CALLED, "")
        return before | words | {CALLED: name} | ({ARGUMENTS: plain} if plain else {})


def chosen_function(request: Request, configuration: PythonConfiguration, *, option: str = "--row") -> str:
    """Name the function that the user means, or the only one.

    Raises
    ------
    ScenarioError
        There are several, and none or no such is named; the message lists them.
    """
    names, wanted = configuration.functions, request.row
    file = str(request.paths[0])
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        return str(wanted)
    found = f"found {wanted[:60]!r}; there are" if wanted else f"choose a function by {option} NAME:"
    raise ScenarioError(f"{found} {', '.join(names)[:3000] or 'none'}", file=file, key=option)
