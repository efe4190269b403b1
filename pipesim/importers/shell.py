"""What the assignments and conditions of a shell script come to, without running any of it.

Variables, arrays, arithmetic, ``if`` and ``case`` on known values are followed; the environment is taken as
empty. Commands are never run: their words are kept, their output is unknown, and so is what is assigned in
loops, functions, or under a condition that is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from pipesim.errors import ScenarioError
from pipesim.importers.shell_condition import condition
from pipesim.importers.shell_expansion import Variables
from pipesim.importers.shell_words import ASSIGNMENT, Lexer, Token

MAX_NESTING = 40
Mode = Literal["run", "doubt", "skip"]
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_SETTING = ("read", "mapfile", "readarray", "getopts", "let", "printf")
_SEPARATORS = (";", "\n", "&")
_ENDS = (*_SEPARATORS, "&&", "||", "|", "|&", ";;", ";&", ";;&", "(", ")")


@dataclass(slots=True)
class Script:
    """What was found in one or more scripts that share their variables.

    Parameters
    ----------
    variables : Variables
        All assignments.
    commands : list of list of str
        The words of every command that is not skipped for sure.
    documents : list of str
        Here-documents.
    notes : dict
        What was taken for granted, in words.
    """

    variables: Variables
    commands: list[list[str]] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)


def read_script(text: str, script: Script) -> None:
    """Follow a script from top to bottom.

    Parameters
    ----------
    text : str
        The script.
    script : Script
        Receives what is found; holds what earlier files assigned.

    Raises
    ------
    ScenarioError
        Unclosed quotes or blocks, too much nesting, expansions without bound.
    """
    lexer = Lexer(text, script.variables.file)
    try:
        _Runner(lexer.tokens(), script).whole()
    except RecursionError:
        raise ScenarioError("is nested too deeply to be read", file=script.variables.file) from None
    script.documents += [
        script.variables.text(body) if expands else body for body, expands in lexer.documents
    ]


def new_script(file: str, define: Mapping[str, str]) -> Script:
    """Begin with the user's own values for variables."""
    return Script(Variables(file, pinned=dict(define)))


class _Exit(Exception):  # noqa: N818
    """The script ends here."""


class _Runner:
    def __init__(self, tokens: list[Token], script: Script) -> None:
        self._tokens = tokens
        self._at = 0
        self._script = script
        self._variables = script.variables
        self._nesting = 0
        self._num_other = 0
        """Commands other than tests, whose truth is assumed outside conditions and not known in them."""

    def whole(self) -> None:
        try:
            while self._peek() is not None:
                self._block("run", ())
                if self._peek() is not None:
                    self._at += 1
        except _Exit:
            pass

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self) -> Token:
        token = self._peek()
        if token is None:
            raise ScenarioError("the script ends inside a block", file=self._variables.file)
        self._at += 1
        return token

    def _block(self, mode: Mode, stops: tuple[str, ...]) -> bool | None:
        """Follow commands until one of the stop words or a closing operator; give the last one's truth."""
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise ScenarioError(f"blocks nested more than {MAX_NESTING} deep", file=self._variables.file)
        truth: bool | None = True
        current = mode
        while (token := self._peek()) is not None:
            if token.is_word(*stops) or token.is_operator(";;", ";&", ";;&", ")"):
                break
            if token.is_operator(*_SEPARATORS):
                current = mode
                self._at += 1
            elif token.is_operator("|", "|&"):
                self._at += 1
                truth = None
            elif token.is_operator("&&", "||"):
                self._at += 1
                if mode == "run":
                    wanted = token.text == "&&"
                    current = "doubt" if truth is None else "run" if truth is wanted else "skip"
            else:
                result = self._statement(current)
                truth = truth if current == "skip" else result
        self._nesting -= 1
        return truth

    def _statement(self, mode: Mode) -> bool | None:
        token = self._take()
        if token.is_word("if"):
            return self._if(mode)
        if token.is_word("case"):
            return self._case(mode)
        if token.is_word("for", "select", "while", "until"):
            return self._loop(mode, token.text)
        if token.is_word("{"):
            return self._until_close(mode, "}")
        if token.is_operator("("):
            following = self._peek()
            if following is not None and following.is_operator("("):
                self._skip_double()
                return None
            truth = self._block(mode, ())
            self._at += 1
            return truth
        if token.is_word("!"):
            truth = self._statement(mode)
            return None if truth is None else not truth
        if token.is_word("function"):
            self._take()
        following = self._peek()
        if token.kind == "word" and following is not None and following.is_operator("("):
            self._at += 1
            if (close := self._peek()) is not None and close.is_operator(")"):
                self._at += 1
        elif not token.is_word("function"):
            self._at -= 1
            return self._simple(mode)
        while (opening := self._peek()) is not None and opening.is_operator("\n"):
            self._at += 1
        if opening is not None and opening.is_word("{"):
            self._at += 1
            self._until_close("skip" if mode == "skip" else "doubt", "}")
        return True

    def _until_close(self, mode: Mode, word: str) -> bool | None:
        truth = self._block(mode, (word,))
        self._expect(word)
        return truth

    def _expect(self, *words: str) -> str:
        token = self._take()
        if not token.is_word(*words):
            raise ScenarioError(
                f"line {token.line}: found {token.text[:20]!r} where {' or '.join(words)} is needed",
                file=self._variables.file,
            )
        return token.text

    def _if(self, mode: Mode) -> bool | None:
        state: Mode = mode
        while True:
            truth = self._condition(state)
            self._expect("then")
            body: Mode = "skip" if truth is False else state if truth else _doubted(state)
            self._block(body, ("elif", "else", "fi"))
            if truth is True and state == "run":
                state = "skip"
            elif truth is None:
                state = _doubted(state)
            word = self._expect("elif", "else", "fi")
            if word == "else":
                self._block(state, ("fi",))
                word = self._expect("fi")
            if word == "fi":
                return None

    def _condition(self, mode: Mode) -> bool | None:
        """Truth of the commands before ``then``; a command other than a test is not known."""
        before = self._num_other
        truth = self._block(mode, ("then",))
        return truth if mode == "run" and self._num_other == before else None

    def _loop(self, mode: Mode, kind: str) -> bool | None:
        inner = _doubted(mode)
        if kind in ("while", "until"):
            self._block(inner, ("do",))
        else:
            name = self._peek()
            if name is not None and name.kind == "word" and inner != "skip":
                self._set_unknown(name.text, name.line)
            while not self._take().is_word("do"):
                pass
            self._at -= 1
        self._expect("do")
        self._until_close(inner, "done")
        return None

    def _case(self, mode: Mode) -> bool | None:
        subject = self._variables.as_set(self._variables.one(self._take().text))
        while (token := self._peek()) is not None and token.is_operator("\n"):
            self._at += 1
        self._expect("in")
        state: Mode = mode if subject is not None else _doubted(mode)
        while True:
            while (token := self._peek()) is not None and token.is_operator("\n", ";;", ";&", ";;&", "("):
                self._at += 1
            if (token := self._take()).is_word("esac"):
                return None
            patterns = []
            while not token.is_operator(")"):
                if token.kind == "word":
                    patterns.append(self._variables.one(token.text))
                token = self._take()
            matches = subject is not None and any(fnmatchcase(subject, each) for each in patterns)
            body: Mode = state if matches or subject is None else "skip"
            self._block(body, ("esac",))
            if matches and state == "run":
                state = "skip"

    def _skip_double(self) -> None:
        depth = 1
        while depth:
            token = self._take()
            depth += token.is_operator("(") - token.is_operator(")")

    def _simple(self, mode: Mode) -> bool | None:
        words: list[Token] = []
        inside_test = (first := self._peek()) is not None and first.is_word("[[")
        while (token := self._peek()) is not None:
            if inside_test and words and words[-1].is_word("]]"):
                break
            if token.is_operator(*_ENDS) and not (inside_test and token.text != "\n"):
                break
            words.append(token)
            self._at += 1
        if mode == "skip" or not words:
            if not words:
                self._at += 1
            return None if mode == "skip" else True
        return self._command(words, mode)

    def _command(self, words: list[Token], mode: Mode) -> bool | None:
        start = 0
        while start < len(words) and (words[start].kind == "array" or ASSIGNMENT.match(words[start].text)):
            start += 1
        if start == len(words):
            self._num_other += 1
            for token in words:
                self._assign(token, mode)
            return True
        name = words[start].text
        if name in ("[", "[[", "test"):
            rest = words[start + 1 :]
            if rest and rest[-1].is_word("]", "]]"):
                rest = rest[:-1]
            return condition(rest, self._variables, self._script.notes)
        if name in ("true", "false"):
            return name == "true"
        self._num_other += 1
        if name in _DECLARING:
            for token in words[start + 1 :]:
                if token.kind == "array" or ASSIGNMENT.match(token.text):
                    self._assign(token, mode)
            return True
        if name in _SETTING:
            for token in words[start + 1 :]:
                if re.fullmatch(r"[A-Za-z_]\w*", token.text):
                    self._set_unknown(token.text, token.line)
            return None
        if name == "unset":
            for token in words[start + 1 :]:
                self._variables.values.pop(token.text, None)
            return True
        if name in ("exit", "return") and mode == "run":
            self._script.notes[f"line {words[start].line}"] = f"the script ends there ({name})"
            raise _Exit
        expanded = [field for token in words[start:] for field in self._variables.fields(token.text)]
        if name in (".", "source"):
            what = " ".join(self._variables.as_set(word) or _end_of(word) for word in expanded[1:])
            if what.rpartition("/")[2] not in self._variables.file.split(", "):
                self._script.notes[f"line {words[start].line}"] = (
                    f"{name} {what}: not read; name the file as well"
                )
            return True
        if expanded:
            self._script.commands.append(expanded)
        return True

    def _assign(self, token: Token, mode: Mode) -> None:
        if token.kind == "array":
            name, append = token.text.rstrip("+"), token.text.endswith("+")
            if mode == "doubt":
                self._set_unknown(name, token.line)
                return
            items = [field for raw in token.items for field in self._variables.fields(raw)]
            self._variables.assign(name, items, append=append)
            return
        match = ASSIGNMENT.match(token.text)
        if match is None:
            return
        if mode == "doubt":
            self._set_unknown(match[1], token.line)
            return
        value = self._variables.one(token.text[match.end() :])
        self._variables.assign(match[1], value, append=bool(match[2]))

    def _set_unknown(self, name: str, line: int) -> None:
        why = f"${name}, which line {line} sets in a loop, a function, or under a condition that is not known"
        self._variables.values[name] = self._variables.unknown(why)


def _end_of(path: str) -> str:
    """Keep the name of a file whose folder is not known."""
    name = path.rpartition("/")[2]
    return "..." if "\0" in name or not name else f".../{name}"


def _doubted(mode: Mode) -> Mode:
    return "skip" if mode == "skip" else "doubt"
