"""Words of a shell script with their variables put in; what cannot be known is marked, never run."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from pipesim.errors import ScenarioError

MAX_EXPANDED = 4 << 20
MAX_DEPTH = 30
_MARK = re.compile("\0([0-9]+)\0")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_PARAMETER = re.compile(r"(#?)([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
}

Value = str | list[str]


@dataclass(slots=True)
class Variables:
    """Names and values of a script, with marks for what it does not say.

    Parameters
    ----------
    file : str
        For messages.
    pinned : dict
        Values that the user gave; assignments in the script do not change them.
    """

    file: str
    pinned: dict[str, str] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    _marks: list[tuple[bool, str]] = field(default_factory=list)
    _spent: int = 0

    def get(self, name: str) -> Value | None:
        """Give a variable's value, or None where nothing was assigned."""
        return self.pinned[name] if name in self.pinned else self.values.get(name)

    def assign(self, name: str, value: Value, *, append: bool = False) -> None:
        """Set a variable as the script does."""
        old = self.values.get(name)
        if append and isinstance(old, list):
            value = old + (value if isinstance(value, list) else [value])
        elif append and isinstance(old, str):
            value = [old, *value] if isinstance(value, list) else old + value
        self._spend(sum(map(len, value)) if isinstance(value, list) else len(value))
        self.values[name] = value

    def unknown(self, reason: str, *, unset: bool = False) -> str:
        """Make a mark that stands for a value that is not known (or that nothing set)."""
        self._marks.append((unset, reason))
        return f"\0{len(self._marks) - 1}\0"

    def doubt(self, text: str) -> str | None:
        """Say why a text is not known; None where it is."""
        match = _MARK.search(text)
        return self._marks[int(match[1])][1] if match else None

    def as_set(self, text: str) -> str | None:
        """Read unset variables as empty, as a condition does; None where something else is unknown."""
        return (
            None
            if any(not self._marks[int(index)][0] for index in _MARK.findall(text))
            else (_MARK.sub("", text))
        )

    def one(self, raw: str) -> str:
        """Expand a word without splitting it."""
        return " ".join(self.fields(raw, split=False))

    def fields(self, raw: str, *, split: bool = True, depth: int = 0) -> list[str]:
        """Expand a raw word to the words it becomes.

        Raises
        ------
        ScenarioError
            Expansions that grow without bound or are nested too deeply.
        """
        if depth > MAX_DEPTH:
            raise ScenarioError("expansions are nested too deeply", file=self.file)
        result: list[str] = []
        current: str | None = None
        quoted = False
        position = 0
        while position < len(raw):
            letter = raw[position]
            if raw.startswith(("\\\n", "\\\r\n"), position):
                position = raw.index("\n", position) + 1
            elif letter == "\\" and position + 1 < len(raw):
                keep = quoted and raw[position + 1] not in '$`"\\'
                current = (current or "") + ("\\" if keep else "") + raw[position + 1]
                position += 2
            elif letter == "'" and not quoted:
                end = raw.find("'", position + 1)
                end = len(raw) if end < 0 else end
                current = (current or "") + raw[position + 1 : end]
                position = end + 1
            elif letter == '"':
                quoted = not quoted
                current = current or ""
                position += 1
            elif letter in "$`":
                value, position = self._expansion(raw, position, depth)
                pieces = value if isinstance(value, list) else [value]
                self._spend(sum(map(len, pieces)) + 1)
                if quoted or not split:
                    for index, piece in enumerate(pieces):
                        if index:
                            result.append(current or "")
                            current = None
                        current = (current or "") + piece
                    continue
                for index, piece in enumerate(pieces):
                    if (index or piece[:1].isspace()) and current is not None:
                        result.append(current)
                        current = None
                    words = piece.split()
                    for number, word in enumerate(words):
                        if number:
                            result.append(current or "")
                            current = None
                        current = (current or "") + word
                    if words and piece[-1:].isspace():
                        result.append(current or "")
                        current = None
            else:
                end = position + 1
                while end < len(raw) and raw[end] not in "\\'\"$`":
                    end += 1
                current = (current or "") + raw[position:end]
                position = end
        if current is not None:
            result.append(current)
        return result

    def text(self, body: str) -> str:
        """Expand the variables of a here-document, in which quotes are plain letters."""
        pieces = re.split(r"(\\.|\$\{[A-Za-z_]\w*\}|\$[A-Za-z_]\w*)", body)
        for index, piece in enumerate(pieces):
            if piece.startswith("$"):
                pieces[index] = self.one(piece)
        self._spend(sum(map(len, pieces)))
        return "".join(pieces)

    def _expansion(self, raw: str, start: int, depth: int) -> tuple[Value, int]:
        if raw[start] == "`":
            end = raw.find("`", start + 1)
            return self.unknown(f"the output of {raw[start : end + 1]}"), (len(raw) if end < 0 else end + 1)
        if raw.startswith("$((", start):
            end = _closing(raw, start + 1)
            return self._arithmetic(raw[start + 3 : end - 1], depth), end + 1
        if raw.startswith("$(", start):
            end = _closing(raw, start + 1)
            return self.unknown(f"the output of {raw[start : end + 1]}"), end + 1
        if raw.startswith("${", start):
            end = _closing(raw, start + 1)
            return self._parameter(raw[start + 2 : end], depth), end + 1
        match = _NAME.match(raw, start + 1)
        if match is None:
            return "$", start + 1
        return self._value(match[0]), match.end()

    def _value(self, name: str) -> Value:
        if name in "@*" and name not in self.pinned:
            return []
        value = self.get(name)
        if value is None:
            what = f"argument ${name} of the script" if name.isdigit() else f"${name}, which is not assigned"
            return self.unknown(what, unset=True)
        return value[0] if isinstance(value, list) and value else "" if isinstance(value, list) else value

    def _parameter(self, body: str, depth: int) -> Value:
        match = _PARAMETER.fullmatch(body)
        if match is None:
            return self.unknown(f"${{{body}}}")
        length, name, index, rest = match.groups()
        value = self.get(name)
        if index in ("@", "*"):
            found: Value = value if isinstance(value, list) else [] if value is None else [value]
            return str(len(found)) if length else found if not rest else self.unknown(f"${{{body}}}")
        if index is not None:
            place = int(index) if re.fullmatch("[0-9]{1,9}", index) else None
            if isinstance(value, list) and place is not None and place < len(value) and not rest:
                return value[place]
            return self.unknown(f"${{{body}}}")
        plain = self._value(name)
        if length:
            known = isinstance(plain, str) and self.doubt(plain) is None
            return str(len(plain)) if known else self.unknown(f"${{{body}}}")
        if not rest:
            return plain
        operation = re.match(r":?[-=+?]", rest)
        if operation is None:
            return self.unknown(f"${{{body}}}")
        is_set = value is not None and not (operation[0][0] == ":" and value in ("", []))
        if operation[0][-1] == "+":
            return self._other(rest[operation.end() :], depth) if is_set else ""
        if is_set or operation[0][-1] == "?":
            return plain
        other = self._other(rest[operation.end() :], depth)
        if operation[0][-1] == "=" and name not in self.pinned:
            self.values[name] = other
        return other

    def _other(self, raw: str, depth: int) -> str:
        return " ".join(self.fields(raw, split=False, depth=depth + 1))

    def _arithmetic(self, raw: str, depth: int) -> str:
        text = self._other(raw, depth)
        why = self.doubt(text)
        if why is not None:
            return self.unknown(why)
        try:
            if len(text) > 500:
                raise ValueError
            return str(self._number(ast.parse(text.strip().replace("\n", " "), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return self.unknown(f"the arithmetic $(({raw}))")

    def _number(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._number(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            result = _ARITHMETIC[type(node.op)](self._number(node.left), self._number(node.right))
            if abs(result) > 10**18:
                raise ValueError
            return result
        if isinstance(node, ast.Name):
            value = self.get(node.id)
            if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
                return int(value)
        raise ValueError

    def _spend(self, size: int) -> None:
        self._spent += size
        if self._spent > MAX_EXPANDED:
            raise ScenarioError(f"variables expand to more than {MAX_EXPANDED >> 20} MiB", file=self.file)


def _closing(raw: str, start: int) -> int:
    """Find the bracket that closes the one at `start`; the lexer saw to it that there is one."""
    opening = raw[start]
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    position = start
    while position < len(raw):
        if raw[position] == "\\":
            position += 1
        elif raw[position] == opening:
            depth += 1
        elif raw[position] == closing:
            depth -= 1
            if not depth:
                return position
        position += 1
    return len(raw)
