"""Literal values and plain arithmetic of Python source, read and never run."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.settings import Unknown

MAX_ITEMS = 100_000
LARGEST = 10**18
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


def evaluated(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Evaluate numbers, texts, lists, mappings, ``dict(...)``, known names, and arithmetic on these.

    Parameters
    ----------
    node : ast.expr
        From `ast.parse`.
    names : Mapping
        Values of names.

    Returns
    -------
    object
        A plain value.

    Raises
    ------
    ValueError
        Anything else, or numbers and lists without bound.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str, bool, type(None))):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [evaluated(item, names) for item in node.elts]
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _bounded(operator.neg, evaluated(node.operand, names))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = evaluated(node.left, names), evaluated(node.right, names)
        long = any(isinstance(value, (list, str)) for value in (left, right))
        if isinstance(node.op, ast.Mult) and long and _size(left) * _size(right) > MAX_ITEMS:
            raise ValueError
        return _bounded(_OPERATORS[type(node.op)], left, right)
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        pairs = zip(node.keys, node.values, strict=True)
        return {
            str(key.value): evaluated(value, names) for key, value in pairs if isinstance(key, ast.Constant)
        }
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {word.arg: evaluated(word.value, names) for word in node.keywords if word.arg}
    raise ValueError


def or_unknown(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Evaluate what can be; what cannot stands as `Unknown`, in a mapping entry by entry."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {word.arg: or_unknown(word.value, names) for word in node.keywords if word.arg}
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        pairs = zip(node.keys, node.values, strict=True)
        return {
            str(key.value): or_unknown(value, names) for key, value in pairs if isinstance(key, ast.Constant)
        }
    try:
        return evaluated(node, names)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        return Unknown(f"the expression {ast.unparse(node)[:80]}")


def parsed(text: str, *, file: str) -> ast.Module:
    """Parse Python source.

    Raises
    ------
    ScenarioError
        It is none.
    """
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        raise ScenarioError(f"is not Python: {line}{str(error)[:100]}", file=file) from None


def assignments(body: list[ast.stmt], names: dict[str, Any]) -> dict[str, Any]:
    """Follow plain assignments from top to bottom; what is not literal stands as `Unknown`."""
    for statement in body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target = statement.target
        if isinstance(target, ast.Name) and isinstance(statement, (ast.Assign, ast.AnnAssign)):
            assert statement.value is not None
            names[target.id] = or_unknown(statement.value, names)
    return names


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (list, str)) else value if isinstance(value, int) else 1


def _bounded(function: Callable[..., Any], *values: Any) -> Any:
    if any(isinstance(value, (dict, Unknown)) for value in values):
        raise ValueError
    result = function(*values)
    if _size(result) > (MAX_ITEMS if isinstance(result, (list, str)) else LARGEST):
        raise ValueError
    return result
