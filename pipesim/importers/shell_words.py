"""Shell text to words and operators; nothing is expanded here, quotes stay where they are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pipesim.errors import ScenarioError

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_BLANK = " \t\r"
_BREAKS = _BLANK + "\n;&|<>()"
_OPERATORS = (";;&", ";;", ";&", "&&", "||", "|&", ";", "&", "|", "(", ")", "\n")


@dataclass(frozen=True, slots=True)
class Token:
    """One word (raw, with its quotes), array assignment, or operator.

    Parameters
    ----------
    kind : str
        ``word``, ``array`` (``text`` is the name, with ``+`` behind it to append) or ``operator``.
    text : str
        As written.
    line : int
        Where it starts, from 1.
    items : list of str
        The raw words of an array.
    """

    kind: str
    text: str
    line: int
    items: tuple[str, ...] = ()

    def is_word(self, *texts: str) -> bool:
        """Whether it is one of these words, unquoted."""
        return self.kind == "word" and self.text in texts

    def is_operator(self, *texts: str) -> bool:
        """Whether it is one of these operators."""
        return self.kind == "operator" and self.text in texts


@dataclass(slots=True)
class Lexer:
    """Cut a script up.

    Parameters
    ----------
    text : str
        The script.
    file : str
        For messages.
    """

    text: str
    file: str
    position: int = 0
    documents: list[tuple[str, bool]] = field(default_factory=list)
    """Bodies of here-documents, and whether variables are expanded in them."""
    _pending: list[tuple[str, bool, bool]] = field(default_factory=list)
    _line: int = 1
    _counted: int = 0

    def tokens(self) -> list[Token]:
        """Give all tokens.

        Raises
        ------
        ScenarioError
            A quote, parenthesis or brace that is never closed.
        """
        result: list[Token] = []
        while (token := self._next()) is not None:
            result.append(token)
        return result

    def _next(self) -> Token | None:
        text = self.text
        while self.position < len(text):
            if text[self.position] in _BLANK:
                self.position += 1
            elif text.startswith(("\\\n", "\\\r\n"), self.position):
                self.position = text.index("\n", self.position) + 1
            elif text[self.position] == "#":
                self.position = self._end_of_line()
            elif text[self.position] in "<>" or text.startswith("&>", self.position):
                self._redirection()
            else:
                break
        if self.position >= len(text):
            return None
        line = self._line_number()
        for operator in _OPERATORS:
            if text.startswith(operator, self.position):
                self.position += len(operator)
                if operator == "\n":
                    self._read_documents()
                return Token("operator", operator, line)
        match = ASSIGNMENT.match(text, self.position)
        if match and text.startswith("(", match.end()):
            self.position = match.end() + 1
            return Token("array", match[1] + match[2], line, self._array(line))
        word = self._word()
        if word.isdigit() and self.position < len(text) and text[self.position] in "<>":
            return self._next()
        return Token("word", word, line)

    def _array(self, line: int) -> tuple[str, ...]:
        items: list[str] = []
        while (token := self._next()) is not None:
            if token.is_operator(")"):
                return tuple(items)
            if token.kind == "word":
                items.append(token.text)
        raise self._unclosed("(", line)

    def _word(self) -> str:
        start, line = self.position, self._line_number()
        text = self.text
        pieces = []
        while self.position < len(text):
            letter = text[self.position]
            if text.startswith(("\\\n", "\\\r\n"), self.position):
                pieces.append(text[start : self.position])
                self.position = start = text.index("\n", self.position) + 1
            elif letter == "\\":
                self.position += 2
            elif letter in _BREAKS:
                break
            elif letter == "'":
                self.position = self._find("'", self.position + 1, line) + 1
            elif letter == '"':
                self.position = self._double_quoted(self.position + 1, line)
            elif letter == "`":
                self.position = self._find("`", self.position + 1, line) + 1
            elif text.startswith(("$(", "${"), self.position):
                self.position = self._balanced(self.position + 1, line)
            else:
                self.position += 1
        self.position = min(self.position, len(text))
        pieces.append(text[start : self.position])
        return "".join(pieces)

    def _double_quoted(self, position: int, line: int) -> int:
        text = self.text
        while position < len(text):
            letter = text[position]
            if letter == '"':
                return position + 1
            if letter == "\\":
                position += 2
            elif letter == "`":
                position = self._find("`", position + 1, line) + 1
            elif text.startswith(("$(", "${"), position):
                position = self._balanced(position + 1, line)
            else:
                position += 1
        raise self._unclosed('"', line)

    def _balanced(self, position: int, line: int) -> int:
        """Skip from an opening bracket to behind the closing one; iterative, whatever the nesting."""
        closing = {"(": ")", "{": "}"}
        text, opened = self.text, [self.text[position]]
        position += 1
        while position < len(text):
            letter = text[position]
            if letter == "\\":
                position += 2
                continue
            if letter == "'" and '"' not in opened:
                position = self._find("'", position + 1, line)
            elif letter == '"':
                if opened[-1] == '"':
                    opened.pop()
                else:
                    opened.append('"')
            elif text.startswith(("$(", "${"), position):
                position += 1
                opened.append(text[position])
            elif letter == "(" and opened[-1] == "(":
                opened.append("(")
            elif opened[-1] != '"' and letter == closing[opened[-1]]:
                opened.pop()
                if not opened:
                    return position + 1
            position += 1
        raise self._unclosed(opened[0], line)

    def _redirection(self) -> None:
        text = self.text
        here = re.compile(r"<<(-?)(?!<)").match(text, self.position)
        if here:
            self.position = here.end()
            self._skip_blanks()
            delimiter = self._word()
            self._pending.append((re.sub(r"['\"\\]", "", delimiter), delimiter.isalnum(), bool(here[1])))
            return
        match = re.compile(r"&?[<>]+[&|]?").match(text, self.position)
        self.position = self.position + 1 if match is None else match.end()
        self._skip_blanks()
        if text.startswith("(", self.position):
            self.position = self._balanced(self.position, self._line_number())
        else:
            self._word()

    def _read_documents(self) -> None:
        for delimiter, expands, indented in self._pending:
            lines = []
            while self.position < len(self.text):
                end = self._end_of_line()
                line = self.text[self.position : end]
                self.position = end + 1
                if (line.lstrip("\t") if indented else line).rstrip("\r") == delimiter:
                    break
                lines.append(line)
            self.documents.append(("\n".join(lines), expands))
        self._pending.clear()

    def _skip_blanks(self) -> None:
        while self.position < len(self.text) and self.text[self.position] in _BLANK:
            self.position += 1

    def _end_of_line(self) -> int:
        end = self.text.find("\n", self.position)
        return len(self.text) if end < 0 else end

    def _find(self, letter: str, start: int, line: int) -> int:
        end = self.text.find(letter, start)
        if end < 0:
            raise self._unclosed(letter, line)
        return end

    def _line_number(self) -> int:
        self._line += self.text.count("\n", self._counted, self.position)
        self._counted = max(self._counted, self.position)
        return self._line

    def _unclosed(self, letter: str, line: int) -> ScenarioError:
        return ScenarioError(f"line {line}: {letter} is never closed", file=self.file)
