"""Every file is read by one guarded reader: its kind, its size and its text are checked in one place."""

import gzip
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.errors import PipesimError
from pipesim.reading import LIMIT_VARIABLE, csv_rows, read_json, read_text

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "scenarios" / "gpt3-175b-a100.yaml"
IMPORTS = ROOT / "tests" / "data" / "imports"
PUBLISHED = ROOT / "pipesim" / "data" / "published"
READERS = {
    "scenario": ("simulate",),
    "report": ("report", "-o", "page.html"),
    "actions": ("schedule", "check"),
    "measured": ("calibrate", "--measured"),
    "published": ("accuracy", "sc21", "--rows"),
    "trace": ("calibrate",),
    "table": ("plot", "sweep", "--kind", "network", "-o", "picture.svg"),
    "megatron": ("import", "megatron", "-o", "scenario.yaml"),
    "hf": ("import", "hf", "-o", "scenario.yaml"),
    "nemo table": ("import", "nemo", "-o", "scenario.yaml"),
    "torchtitan": ("import", "torchtitan", "-o", "scenario.yaml"),
}
ENDINGS = {"nemo table": ".csv", "actions": ".csv", "hf": ".json", "trace": ".json", "scenario": ".yaml"}


def refusal(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert isinstance(result.exception, PipesimError), (arguments, result.output, result.exception)
    return str(result.exception)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_and_not_waited_for(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"x{ENDINGS.get(reader, '.txt')}"
    assert "cannot be read: no such file" in refusal(*READERS[reader], path)
    os.mkfifo(path)
    assert "is a device or a pipe" in refusal(*READERS[reader], path)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "is a device or a pipe" in refusal(*READERS[reader], path)
    if reader != "trace":  # a folder of traces is read
        path.unlink()
        path.mkdir()
        assert "is a directory" in refusal(*READERS[reader], path)


@pytest.mark.parametrize("reader", READERS)
def test_a_file_larger_than_any_of_its_kind_is_refused(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    path = tmp_path / f"x{ENDINGS.get(reader, '.txt')}"
    with path.open("wb") as stream:
        stream.truncate(100 << 30)  # a file of holes: reading it whole would take the machine down
    assert "is larger than 1 MiB" in refusal(*READERS[reader], path)


def test_the_limit_of_large_files_can_be_set(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(["x" * (3 << 20)]))
    assert len(read_json(path)[0]) == 3 << 20
    monkeypatch.setenv(LIMIT_VARIABLE, "2")
    with pytest.raises(PipesimError, match=f"larger than 2 MiB.*{LIMIT_VARIABLE}"):
        read_json(path)
    for wrong in ("0", "-1", "2 GiB", "9" * 50):
        monkeypatch.setenv(LIMIT_VARIABLE, wrong)
        with pytest.raises(PipesimError, match="a number of MiB"):
            read_json(path)


def test_a_packed_file_that_grows_without_measure_is_refused(tmp_path):
    path = tmp_path / "trace.json.gz"
    with path.open("wb") as stream, gzip.GzipFile(fileobj=stream, mode="wb") as packed:
        for _ in range(40):
            packed.write(b" " * (1 << 20))
    assert path.stat().st_size < 1 << 16
    with pytest.raises(PipesimError, match="unpacks to more than 200 times its size"):
        read_json(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(PipesimError, match="cannot be read: is not whole"):
        read_json(path)
    path.write_bytes(b"{}")
    with pytest.raises(PipesimError, match="is not packed by gzip"):
        read_json(path)


def test_json_of_nothing_but_brackets_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "2")
    (tmp_path / "x.json").write_text("[" + "[]," * 300_000 + "[]]")
    with pytest.raises(PipesimError, match="more values"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n" * 1_000_001, "more than 1,000,000 lines"),
        ("a,b\n" + "1," * (1 << 23) + "1\n", "line 2: has more than 16,777,216 characters"),
        ("a\n" + "x" * 131_073, "line 2: the file is not CSV: field larger than field limit"),
    ],
)
def test_csv_that_nobody_means(text, words):
    with pytest.raises(PipesimError, match=words):
        list(csv_rows(text))


def test_a_byte_order_mark_is_no_part_of_any_text(tmp_path, monkeypatch):
    """Spreadsheets and editors of Windows write it; each kind of file reads with it as without it."""
    sources = {
        "scenario": (MODEL, ("simulate",)),
        "published": (PUBLISHED / "megatron_sc21_table1.csv", ("accuracy", "sc21", "--rows")),
        "nemo": (IMPORTS / "nemo_table.csv", ("import", "nemo", "-o", "out.yaml", "--row", "4")),
        "hf": (ROOT / "scenarios/configs/llama3-70b.json", ("import", "hf", "-o", "out.yaml")),
        "megatron": (IMPORTS / "megatron_175b.sh", ("import", "megatron", "-o", "out.yaml", "--gpus", "128")),
    }
    monkeypatch.chdir(tmp_path)
    for kind, (source, arguments) in sources.items():
        path = tmp_path / source.name
        said = []
        text = source.read_bytes()
        if kind == "published":
            text = b"".join(text.splitlines(keepends=True)[:3])
        for mark in (b"", b"\xef\xbb\xbf"):
            path.write_bytes(mark + text)
            result = CliRunner().invoke(app, [*arguments, str(path)])
            said.append((result.exit_code, result.output, str(result.exception)))
        assert said[0] == said[1], kind
        assert said[0][0] == 0, kind


def test_text_is_text(tmp_path):
    path = tmp_path / "x"
    for content, words in ((b"\xff\xfea\0", "not a UTF-8 text file"), (b"a\0b", "byte 1 is zero")):
        path.write_bytes(content)
        with pytest.raises(PipesimError, match=words):
            read_text(path)
