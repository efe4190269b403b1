"""No line is longer than the terminal, and the first three hold the answer."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.show.blocks import Lines, Table, Verbatim
from pipesim.show.text_layout import command_lines, text_lines

SCENARIOS = Path(__file__).parent.parent / "scenarios"
GPT3, TEACHING = SCENARIOS / "gpt3-175b-a100.yaml", SCENARIOS / "teaching.yaml"
FEW = ("--schedules", "1f1b,interleaved-1f1b,zb-v,gpipe,pipedream", "--set", "batch.global=64")


def printed(columns, *arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", GPT3, *FEW, "--assumptions"),
        ("compare", TEACHING, "--chunks", "1,2"),
        ("simulate", GPT3, "--set", "batch.global=16"),
        ("simulate", TEACHING),
        ("schedule", "list"),
        ("presets",),
        ("presets", "h100-sxm"),
    ],
    ids=lambda arguments: "-".join(Path(str(one)).name for one in arguments),
)
def test_no_line_is_longer_than_the_terminal(arguments, columns):
    lines = printed(columns, *arguments)
    assert len(lines) > 5
    assert max(map(len, lines)) <= columns


def test_wide_lines_are_as_long_as_they_are():
    assert max(map(len, printed(80, "compare", GPT3, *FEW, "--wide"))) > 120


def test_the_first_three_lines_hold_the_answer():
    name, use, gain, *_ = printed(80, "compare", GPT3, *FEW)
    assert name == "GPT-3 175B on 128 A100"
    assert re.match(r"USE zb-v v2: \S+ s a step \+-\S+ %, \d+ % MFU. Runs in torch.", use)
    assert gain.startswith("vs 1f1b, the schedule in the scenario: -")
    step, memory, _ = printed(80, "simulate", GPT3, "--set", "batch.global=16")[:3]
    assert re.match(r"1f1b: \S+ s a step", step)
    assert memory.startswith("MEMORY ")


words = st.text("ab c-,", min_size=0, max_size=60)


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.tuples(
            st.lists(words, min_size=n, max_size=n),
            st.lists(st.lists(words, min_size=n, max_size=n), min_size=1, max_size=4),
            st.integers(1, n),
        )
    ),
    st.booleans(),
)
def test_tables_keep_every_letter_and_fit_where_words_do(parts, ruled):
    columns, rows, num_left = parts
    table = Table("", columns, rows, num_left, ruled=ruled)
    lines = list(text_lines(table, 400))
    assert max(map(len, lines)) <= 400
    narrow = list(text_lines(table, 80))
    for at in range(len(columns)):
        for row in rows:
            letters = sorted(c for c in row[at] if c.isalpha())
            assert all("".join(narrow).count(c) >= letters.count(c) for c in set(letters))
    if num_left == len(columns):
        assert max(map(len, narrow)) <= 80


def test_verbatim_text_stays_and_lists_hang_in():
    assert list(text_lines(Verbatim("a   b\nc"), 2)) == ["a   b", "c"]
    text = "  one two three four five"
    assert list(text_lines(Lines([text]), 20)) == ["  one two three four", "    five"]


def test_a_long_command_is_one_for_the_shell():
    command = ["pipesim", "simulate", "a.yaml", *["--set key=value"] * 9]
    lines = list(command_lines(command, 60))
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert " ".join(line.removesuffix("\\").strip() for line in lines) == " ".join(command)
