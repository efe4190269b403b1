"""A report stands alone, says what the numbers say, and shows a scenario's text as text."""

import base64
import json
import re
import subprocess
import sys
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from shutil import copyfile

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.errors import PipesimError
from pipesim.questions import compare
from pipesim.scenario import load_scenario
from pipesim.show import report as report_module
from pipesim.show.amounts import seconds
from pipesim.show.blocks import Lines, Picture, Section, Table, Verbatim
from pipesim.show.page import page

ROOT = Path(__file__).parent.parent
TEACHING = ROOT / "scenarios" / "teaching.yaml"
GPT3 = ROOT / "scenarios" / "gpt3-175b-a100.yaml"
FEW = ("--schedules", "gpipe,1f1b,zb-h1,zb-v")
HOSTILE = "<script>alert('x')</script> \"Ω\" & 管道 ${title} $$ \u202e</title>"
VOID = {"meta", "img"}


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order, in an attribute nothing that loads or runs.

    Of scripts only the page's own, which the policy names by its hash, and data that are none.
    """

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.pictures = [], {}, []
        self.rows, self.marked, self.scripts, self.policy = {}, {}, [], ""
        self.feed(text)
        self.close()
        assert self.open == []
        hashes = [base64.b64encode(sha256(one.encode()).digest()).decode() for one in self.scripts]
        assert re.findall(r"script-src '([^;]*)'", self.policy) == [f"sha256-{one}" for one in hashes]
        assert self.policy.startswith("default-src 'none';")

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert tag not in ("link", "iframe", "object", "form", "a")
        self.policy += attributes.get("content", "") if "http-equiv" in attributes else ""
        if tag == "script":
            assert attributes in ({"type": "module"}, {"type": "text/plain", "id": "timeline-data"})
            self.runs = "id" not in attributes
            self.scripts += [""] * self.runs
        assert not any(name.startswith("on") or name in ("href", "srcset", "action") for name in attributes)
        if tag == "img":
            kind, _, data = attributes["src"].partition(",")
            assert kind == "data:image/png;base64"
            self.pictures.append((base64.b64decode(data, validate=True), attributes["alt"]))
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
        if tag == "tr":
            self.row = []
            self.row_is_marked = attributes.get("class") == "marked"
        if tag in ("caption", "th", "td", "p", "li", "pre", "title", "h1", "small"):
            self.texts.setdefault(tag, []).append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("th", "td"):
            self.row.append(self.texts[tag][-1].strip())
        if tag == "tr":
            rows = self.rows.setdefault(self.texts["caption"][-1], [])
            rows.append(self.row)
            if self.row_is_marked:
                self.marked[self.row[0]] = self.texts["small"][-1].strip()

    def handle_data(self, data):
        if self.open and self.open[-1] == "script" and self.runs:
            self.scripts[-1] += data
        if self.open and self.open[-1] in self.texts:
            self.texts[self.open[-1]][-1] += data

    def table(self, words):
        (caption,) = [caption for caption in self.rows if words in caption]
        return self.rows[caption]


def pipesim(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, PipesimError):
        return 2, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def report(scenario, *arguments):
    output = Path(scenario).parent / "page.html"
    status, message = pipesim("report", scenario, "-o", output, *arguments)
    assert status == 0, message
    text = output.read_text(encoding="utf-8")
    return text, Page(text), message


@pytest.fixture
def drawn():
    """Has the pictures of a page drawn."""


@pytest.fixture(autouse=True)
def quick_pictures(request, monkeypatch):
    """Leaves out the drawing of pictures, most of a page's time, where a test is not about them."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(report_module, "png", lambda figure: b"\x89PNG" + bytes(20))


@pytest.fixture
def teaching(tmp_path):
    return copyfile(TEACHING, tmp_path / "teaching.yaml")


def scenario_of(folder, **keys):
    mapping = {**yaml.safe_load(TEACHING.read_text()), **keys}
    file = folder / "scenario.yaml"
    file.write_text(yaml.safe_dump(mapping, allow_unicode=True), encoding="utf-8")
    return file


def test_the_page_says_what_compare_says(teaching):
    text, found, printed = report(teaching)
    compared = compare(load_scenario(teaching))
    best = min(float(r.metrics.step_time_s) for r in compared.results if r.synchronous)
    assert found.texts["h1"] == ["Four ranks, eight microbatches"]
    headline = found.texts["p"][0]
    assert seconds(best) in headline
    assert headline in printed
    assert "memory" not in headline
    assert any(f"in the scenario: {100 * (best / 33 - 1):+.1f} %." in line for line in found.texts["li"])
    columns, *rows = found.table("Fastest step first")
    step = columns.index("step time")
    expected = [(r.schedule.name, seconds(r.metrics.step_time_s)) for r in compared.results]
    assert sorted((row[0], row[step]) for row in rows) == sorted(expected)
    assert found.marked["1f1b"] == "in the scenario"
    assert [row[0] for row in found.table("cannot run")[1:]] == [s.schedule for s in compared.skipped]
    assert len(text) < 1e6


def test_a_large_model_has_memory_and_an_error_band(tmp_path, drawn):
    text, found, _ = report(copyfile(GPT3, tmp_path / "gpt3.yaml"), *FEW)
    headline, sentences = found.texts["p"][0], " ".join(found.texts["li"])
    assert re.fullmatch(
        r"USE zb-v v2: 14.07 s a step \+-\d\d %, 50 % MFU. Runs in torch.", headline
    )  # the band of a schedule without a row
    gain = "vs 1f1b, the schedule in the scenario: -8.5 % (nine in ten between -13 % and -3.8 %)."
    assert gain in sentences
    # 79.25 GiB are 85.1 GB, less 2 GiB.
    assert "MEMORY 44.8 of 82.9 GB usable (85.1 less 2.15 reserved), 46 % free." in sentences
    assert "does not fit in the device's memory: gpipe" in sentences
    assert ["cluster.accelerator", "a100-sxm-80, 85.09 GB (79.2 GiB) of memory"] in found.table(
        "where numbers"
    )
    parts = {row[0] for row in found.table("Parts that add up")[1:]}
    assert "idle of the busiest rank" in parts
    assert parts <= {row[0] for row in found.table("Parts of the step")}
    ranks = found.table("Ranks of zb-v v2")
    assert [row[0] for row in ranks[1:]] == [str(rank) for rank in range(8)]
    assert len(found.pictures) == 6
    assert len(text) < 1e6


def test_pictures_are_pngs_with_words_and_tables_have_captions(teaching, drawn):
    text, found, _ = report(teaching, *FEW)
    assert len(found.pictures) == 4  # no memory stated, so no picture of it
    for png, words in found.pictures:
        assert png.startswith(b"\x89PNG")
        assert len(words) > 20
    assert text.count("<table") == text.count("<caption>")
    assert not re.search(r"url\(|@import|https?://[^<]*\.(?:js|css|png)", text)


def test_a_second_run_of_what_the_page_shows_is_the_same_page(teaching, tmp_path, drawn):
    first, found, _ = report(teaching, *FEW, "--set", "batch.microbatches=4", "--set", "name='a b'")
    scenario, command = found.texts["pre"]
    program, verb, file, *flags = re.findall(r"'[^']*(?:'\"'\"'[^']*)*'|\S+", command)
    assert (program, verb, file) == ("pipesim", "report", "teaching.yaml")
    assert flags[-2:] == ["-o", "teaching.html"]
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / file).write_text(scenario.removeprefix("\n"), encoding="utf-8")
    again, *_ = report(folder / file, *FEW, "--set", "batch.microbatches=4", "--set", "name='a b'")
    assert again == first
    assert found.texts["h1"] == ["a b"]
    assert "4, 4, 4" in {row[1] for row in found.table("One step")} | {
        row[-1] for row in found.table("One step")
    }


def test_the_scenario_is_shown_to_the_letter(teaching):
    text = "\n\n# <b>&amp; \"'\n" + TEACHING.read_text() + "\n  \n"
    teaching.write_text(text)
    _, found, _ = report(teaching, "--schedules", "1f1b")
    assert found.texts["pre"][0] == "\n" + text  # a parser of HTML drops the first


def test_no_folder_of_the_machine_is_on_the_page(tmp_path, monkeypatch):
    folder = tmp_path / "my secret folder"
    folder.mkdir()
    file = scenario_of(folder, schedule={"csv": "own.csv"}, costs={"forward": 1, "backward": 2, "p2p": 0})
    status, _ = pipesim(
        *("schedule", "export", "gpipe", "--ranks", 4, "--chunks", 1, "--microbatches", 8),
        *("-o", folder / "own.csv"),
    )
    assert status == 0
    text, found, _ = report(file, *FEW, "--set", f"schedule.csv={folder / 'own.csv'}")
    assert "secret" not in text
    assert str(tmp_path) not in text
    assert "schedule.csv=own.csv" in found.texts["pre"][1]
    assert found.marked["own"] == "in the scenario"
    monkeypatch.chdir(tmp_path)
    unusable = ("--set", "schedule={csv: missing.csv}")
    status, message = pipesim("report", Path(folder.name) / file.name, "-o", "page.html", *unusable)
    assert (status, "cannot be read" in message) == (2, True)
    assert not Path("page.html").exists()


def test_a_csv_with_the_name_of_a_schedule_is_not_taken_for_it(tmp_path):
    file = scenario_of(tmp_path, schedule={"csv": "1f1b.csv"})
    pipesim(
        *("schedule", "export", "gpipe", "--ranks", 4, "--chunks", 1, "--microbatches", 8),
        *("-o", tmp_path / "1f1b.csv"),
    )
    _, found, _ = report(file, "--schedules", "1f1b,zb-v")
    columns, *rows = found.table("Fastest step first")
    flight = columns.index("peak held")
    assert sorted((row[0], row[flight]) for row in rows if row[0] == "1f1b") == [("1f1b", "4"), ("1f1b", "8")]


def test_hostile_names_stay_text(tmp_path):
    folder = tmp_path / "<i>&'\""
    folder.mkdir()
    file = scenario_of(folder, name=HOSTILE)
    renamed = file.rename(folder / "<script>;'$(x) π.yaml")
    text, found, _ = report(renamed, *FEW, "--set", "seed=1")
    assert found.texts["title"] == found.texts["h1"] == [HOSTILE]
    assert "<script>;'" in found.texts["pre"][1].replace("'\"'\"'", "'")
    assert text.count("<script") == 2
    assert len(found.scripts) == 1


def test_a_name_that_is_no_text_is_written_with_a_mark():
    text = page("a\udc80\x01b", [Section("s", ["p"])], footer="f")
    text.encode()
    assert Page(text).texts["h1"] == ["a\ufffd\ufffdb"]


@given(st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn")), min_size=1))
def test_every_block_gives_its_text_back(words):
    png = b"\x89PNG\r\n\x1a\n" + bytes(range(16))
    blocks = [words, Lines([words]), Verbatim(words), Table(words, [words, "b"], [[words, words]])]
    found = Page(page(words, [Section(words, [*blocks, Picture(png, words, words)])], footer=words))
    for tag in ("p", "li", "title", "caption"):
        assert found.texts[tag] == [words]
    assert found.texts["pre"] == ["\n" + words]
    assert found.pictures == [(png, words)]
    cell = words.strip()
    assert found.rows == {words: [[cell, "b"], [cell, cell]]}


def test_the_schedule_in_use_is_kept_where_none_is_faster(teaching):
    _, found, _ = report(teaching, "--schedules", "gpipe,1f1b")
    assert found.texts["p"][0].startswith("USE 1f1b: 33 s a step.")
    assert "It is the schedule in the scenario. A tie: gpipe." in found.texts["li"]
    assert found.marked == {"1f1b": "chosen and in the scenario"}
    _, found, _ = report(teaching, "--schedules", "1f1b", "--set", "schedule=gpipe")
    assert found.texts["p"][0].startswith("USE gpipe: 33 s")


def test_a_schedule_that_cannot_run_is_said_with_the_reason(teaching):
    _, found, _ = report(teaching, *FEW, "--set", "schedule=dualpipe", "--set", "parallel.pipeline=3")
    assert any("own schedule cannot run" in line for line in found.texts["li"])
    assert list(found.marked.values()) == ["chosen"]


def test_an_asynchronous_schedule_is_compared_and_not_chosen(teaching):
    _, found, _ = report(teaching, "--schedules", "gpipe", "--set", "schedule=pipedream")
    assert found.texts["p"][0].startswith("USE gpipe: 33 s")
    assert any("vs pipedream" in line and "that is asynchronous." in line for line in found.texts["li"])
    _, found, _ = report(teaching, "--schedules", "pipedream", "--set", "schedule=pipedream")
    assert found.texts["p"][0].endswith("It is asynchronous: it trains differently.")


def test_where_nothing_fits_the_page_says_so_and_what_would(tmp_path):
    file = copyfile(GPT3, tmp_path / "gpt3.yaml")
    _, found, _ = report(
        file, "--schedules", "gpipe,1f1b", "--set", "optimizer=plain", "--set", "batch.micro=8"
    )
    assert found.texts["p"][0].startswith("NOTHING FITS in the devices' memory. The least needs 1f1b:")
    assert any("would" in line and "fit" in line for line in found.texts["li"])


def test_the_answer_claims_no_more_than_was_compared(teaching):
    few = ("--schedules", "1f1b,interleaved-1f1b")
    _, found, _ = report(teaching, *few)
    assert any("try --chunks 2,4" in line for line in found.texts["li"])
    _, found, _ = report(teaching, *few, "--chunks", "2")
    assert found.texts["p"][0].startswith("USE interleaved-1f1b v2: ")
    assert not any("Not compared" in line for line in found.texts["li"])


def test_the_page_says_who_runs_the_choice(teaching):
    _, found, printed = report(teaching, *FEW)
    assert "USE zb-v v2: 25.5 s a step. Runs in torch." in printed
    assert "torch runs: zb-v v2, zb-h1, gpipe, 1f1b" in found.texts["li"]
    _, _, printed = report(teaching, "--schedules", "v-min,v-half")
    assert "No framework runs it by name; torch loads its CSV." in printed


def test_options_of_the_scenario_count(teaching):
    _, found, _ = report(teaching, *FEW, "--set", "schedule={name: zb-auto, max_in_flight: 4}")
    columns, *rows = found.table("Fastest step first")
    peaks = {row[0].split()[0]: row[columns.index("peak held")] for row in rows}
    assert peaks["zb-auto"] == "4"
    _, found, _ = report(teaching, "--schedules", "zb-auto")
    columns, *rows = found.table("Fastest step first")
    assert int({row[0]: row for row in rows}["zb-auto"][columns.index("peak held")]) > 4


def test_json_has_the_answer_and_the_comparison(teaching):
    _, found, printed = report(teaching, *FEW, "--json")
    document = json.loads(printed)
    assert document["best"]["step_time_s"] == min(r["step_time_s"] for r in document["results"])
    assert document["scenario_schedule"]["schedule"] == "1f1b"
    assert document["scenario_schedule"]["step_time_s"] == 33
    assert document["saved_share"] == pytest.approx(1 - document["best"]["step_time_s"] / 33)
    assert document["answer"][0] == found.texts["p"][0]
    assert {r["schedule"] for r in document["results"]} == {"gpipe", "1f1b", "zb-h1", "zb-v"}
    assert document["skipped"] == []


def test_a_page_is_written_whole_or_not_at_all(teaching, tmp_path):
    before = teaching.read_bytes()
    for output, words in (
        (tmp_path / "missing" / "page.html", "cannot be written"),
        (tmp_path, "is a directory"),
        (teaching, "read as input"),
    ):
        status, message = pipesim("report", teaching, "-o", output)
        assert (status, words in message) == (2, True), message
    page_file = tmp_path / "page.html"
    page_file.write_text("old")
    for bad in (
        ("--set", "batch.microbatches=0"),
        ("--schedules", "1f2b"),
        ("--chunks", "x"),
        ("--set", "schedule=2f2b"),
    ):
        status, _ = pipesim("report", teaching, "-o", page_file, *bad)
        assert status == 2
    assert page_file.read_text() == "old"
    assert teaching.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "teaching.yaml"]


def test_a_scenario_that_can_be_read_only_once_is_refused(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "pipesim", "report", "/dev/stdin", "-o", tmp_path / "page.html"],
        input=TEACHING.read_text(),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (run.returncode, "read only once" in run.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_output_is_needed():
    status, _ = pipesim("report", TEACHING)
    assert status == 2
