"""The report in a real browser: nothing asked for, nothing cut, every key and finger answered."""

from pathlib import Path

import numpy as np
import pytest
from headless_browser import CUT, PROGRAM, WHY_NOT, browser
from matplotlib.figure import Figure
from typer.testing import CliRunner

import pipesim
from pipesim.cli.app import app
from pipesim.show import report as report_module
from pipesim.show.figures.canvas import png

ROOT = Path(__file__).parent.parent
TEACHING = ROOT / "scenarios" / "teaching.yaml"
GPT3 = ROOT / "scenarios" / "gpt3-175b-a100.yaml"
SCHEDULES = "1f1b,zb-v,gpipe"

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)

LANE = "document.getElementById('timelines').timelines.view.lanes"

COVER = f"""(async () => {{ const lane = {LANE}[0], found = [];
  lane.figure.scrollIntoView();
  for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
  const {{ raster, run, ratio, row }} = lane;
  for (let rank = 0; rank < run.ranks; rank++) {{
    const top = rank * row * ratio, rows = (row > 7 ? row - 1 : row) * ratio;
    const inside = Math.round(run.makespan / (lane.view.to - lane.view.from) * raster.width);
    let drawn = 0;
    for (let y = top; y < top + rows; y++) for (let x = 0; x < inside; x++)
      if (raster.pixels[y * raster.width + x] !== lane.ground) drawn++;
    found.push(drawn / rows / inside);
  }}
  return found; }})()"""


def place_of(tab, name):
    """Bring a lane into view: where its time 0 and its first rank are, and the pixels of a second."""
    return tab.run(
        f"(async () => {{ const lane = {LANE}.find((one) => one.run.name === '{name}');"
        "lane.gantt.scrollIntoView({block: 'center'});"
        "for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);"
        "const { left, top, width } = lane.gantt.getBoundingClientRect();"
        "return [left + lane.gutter, top + lane.row / 2, (width - lane.gutter) / lane.view.to]; })()"
    )


@pytest.fixture(scope="module")
def tab():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    blank = png(Figure(figsize=(6, 2)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(report_module, "png", lambda figure: blank)  # what they show is tested elsewhere
        return write_pages(folder)


def write_pages(folder):
    for file, *more in ((TEACHING,), (GPT3, "--set", "batch.global=256")):
        output = folder / f"{file.stem}.html"
        done = CliRunner().invoke(
            app, ["report", str(file), "-o", str(output), "--schedules", SCHEDULES, *more]
        )
        assert done.exit_code == 0, done.output
    return {"teaching": folder / "teaching.html", "gpt3": folder / f"{GPT3.stem}.html"}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", ["teaching", "gpt3"])
def test_nothing_is_asked_for_said_or_cut(tab, pages, page, width, dark):
    tab.open(pages[page], width=width, dark=dark, touch=width < 500)
    assert tab.complaints == []
    assert tab.run(CUT) == []
    assert tab.run(f"{LANE}.length") == 2
    assert tab.run("document.documentElement.scrollWidth") <= width
    ground = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(22, 22, 22)") == dark
    assert tab.run("[...document.querySelectorAll('.static')].every((one) => !one.getClientRects().length)")


@pytest.mark.parametrize("page", ["teaching", "gpt3"])
def test_what_is_drawn_covers_as_much_as_ranks_are_busy(tab, pages, page):
    """At 390 px the boxes of GPT-3 are narrower than three pixels, at 1280 px the teaching ones are wide."""
    tab.open(pages[page], width=390 if page == "gpt3" else 1280)
    name, shares = tab.run(f"{LANE}[0].run.name"), tab.run(COVER)
    file, more = (TEACHING, {}) if page == "teaching" else (GPT3, {"batch.global": 256})
    run = pipesim.Scenario.load(file).with_({**more, "schedule": name.split()[0]}).predict()
    busy = [1 - rank.bubble_ratio for rank in run.metrics.ranks]
    assert np.abs(np.array(shares) - busy).max() < 0.004


def test_what_the_script_has_read_adds_up_to_the_metrics(tab, pages):
    tab.open(pages["gpt3"])
    sums = f"""{LANE}.map(({{ run }}) => [run.name, run.offsets.slice(1).map((last, rank) => {{
      const found = {{ warmup_s: run.gap[run.offsets[rank]], dependency_s: 0, p2p_s: 0, busy_s: 0 }};
      for (let i = run.offsets[rank]; i < last; i++) {{
        found.busy_s += run.end[i] - run.start[i] - run.collective[i];
        if (i > run.offsets[rank]) {{
          found.p2p_s += run.p2p[i];
          found.dependency_s += run.gap[i] - run.p2p[i];
        }}
      }}
      found.cooldown_s = run.makespan - run.end[last - 1];
      return found;
    }})])"""
    for name, of_ranks in tab.run(sums):
        scenario = pipesim.Scenario.load(GPT3).with_({"batch.global": 256, "schedule": name.split()[0]})
        for found, rank in zip(of_ranks, scenario.predict().metrics.ranks, strict=True):
            for part, seconds in found.items():
                assert seconds == pytest.approx(getattr(rank.breakdown, part), abs=1e-7, rel=0)


def test_hovering_says_what_runs_and_why_a_rank_is_idle(tab, pages):
    """1F1B of four ranks, F 1 and B 2: rank 0 waits from 4 to 10 for the backward of rank 1."""
    tab.open(pages["teaching"])
    left, top, second = place_of(tab, "1f1b")
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=left + 2.5 * second, y=top)
    said = tab.run("document.querySelector('.tip').innerText")
    assert said.startswith("0F2: forward, rank 0, stage 0, microbatch 2\n2 s to 3 s, takes 1 s")
    assert "microbatches held: 3" in said
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=left + 7 * second, y=top)
    said = tab.run("document.querySelector('.tip').innerText")
    assert said == "rank 0 is idle; next is 0B0\nidle 6 s before it: 6 s until 1B0 on rank 1 has ended"


def test_the_keyboard_walks_boxes_and_follows_a_microbatch(tab, pages):
    tab.open(pages["teaching"])
    tab.run(f"{LANE}.find((one) => one.run.name === '1f1b').gantt.focus()")
    said = "document.querySelector('.said').textContent"
    tab.press("ArrowRight")
    tab.press("Home")
    assert tab.run(said).startswith("0F0: forward, rank 0")
    tab.press("ArrowRight")
    tab.press("ArrowDown")
    assert tab.run(said).startswith("1F0: forward, rank 1, stage 1, microbatch 0; 1 s to 2 s")
    tab.press("Enter")
    assert tab.run("document.querySelector('.bar input').value") == "0"
    lit = f"{LANE}.map((lane) => lane.lit && lane.lit.reduce((sum, one) => sum + one, 0))"
    assert 8 in tab.run(lit)  # F and B of four stages
    tab.press("Escape")
    assert tab.run(lit) == [None, None]
    assert tab.run("document.querySelector('.said').getAttribute('aria-live')") == "polite"


def test_the_critical_path_has_no_gaps(tab, pages):
    """Its actions follow each other from the first start to the last end, as no message takes time here."""
    tab.open(pages["teaching"])
    buttons = "[...document.querySelectorAll('.bar button')]"
    tab.run(f"{buttons}.find((one) => one.textContent === 'Critical path').click()")
    for lit, total in tab.run(
        f"{LANE}.map(({{ lit, run }}) => [lit.reduce((sum, one, i) => "
        "sum + one * (run.end[i] - run.start[i]), 0), run.makespan])"
    ):
        assert lit == pytest.approx(total)


def test_the_wheel_scrolls_the_page_and_with_control_zooms(tab, pages):
    tab.open(pages["teaching"])
    view = "(({from, to}) => [from, to])(document.getElementById('timelines').timelines.view)"
    left, y, second = place_of(tab, "1f1b")
    x, whole = left + 10 * second, tab.run(view)
    wheel = {"type": "mouseWheel", "x": x, "deltaX": 0, "deltaY": -120}
    before = tab.run("scrollY")
    tab.ask("Input.dispatchMouseEvent", **wheel, y=y)
    scrolled = "new Promise((done) => addEventListener('scrollend', () => done(scrollY), {once: true}))"
    assert tab.run(f"scrollY === {before} ? {scrolled} : scrollY") < before
    assert tab.run(view) == whole
    left, y, second = place_of(tab, "1f1b")
    tab.ask("Input.dispatchMouseEvent", **wheel, y=y, modifiers=2)
    begin, end = tab.run(view)
    assert 0 < begin < end < whole[1]
    for kind, at in (("mousePressed", x), ("mouseMoved", x + 60), ("mouseReleased", x + 60)):
        held = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        tab.ask("Input.dispatchMouseEvent", type=kind, x=at, y=y, buttons=1, **held)
    assert tab.run(view)[0] < begin


def test_two_fingers_zoom_and_one_moves_on_a_phone(tab, pages):
    tab.open(pages["teaching"], width=390, height=844, touch=True)
    tab.ask("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    view = "(({from, to}) => [from, to])(document.getElementById('timelines').timelines.view)"
    left, y, _ = place_of(tab, "1f1b")
    whole = tab.run(view)

    def touch(kind, *places):
        points = [{"x": left + x, "y": y, "id": number} for number, x in enumerate(places)]
        tab.ask("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    touch("touchStart", 120, 180)
    for apart in (40, 60, 80):
        touch("touchMove", 150 - apart, 150 + apart)
    touch("touchEnd")
    begin, end = tab.run(view)
    assert end - begin < 0.6 * (whole[1] - whole[0])
    touch("touchStart", 200)
    for at in (180, 150, 120):
        touch("touchMove", at)
    touch("touchEnd")
    later, _ = tab.run(view)
    assert later > begin
    tab.ask("Emulation.setTouchEmulationEnabled", enabled=False)


def test_a_tick_box_shows_a_lane_and_headings_sort(tab, pages):
    tab.open(pages["gpt3"])
    boxes = "[...document.querySelectorAll('table.schedules input')]"
    assert tab.run(f"{boxes}.map((one) => one.checked)").count(True) == 2
    tab.run(f"{boxes}.find((one) => !one.checked).click()")
    assert tab.run(f"{LANE}.length") == 3
    head = (
        "[...document.querySelectorAll('table.schedules th')].find((one) => one.textContent === 'step time')"
    )
    rows = "[...document.querySelectorAll('table.schedules tbody tr')]"
    column = f"{rows}.map((row) => row.cells[{head}.cellIndex].textContent)"
    for way, backwards in (("ascending", False), ("descending", True)):
        tab.run(f"{head}.querySelector('button').click()")
        seconds = [float(words.split()[0]) for words in tab.run(column)]
        assert seconds == sorted(seconds, reverse=backwards)
        assert tab.run(f"{head}.getAttribute('aria-sort')") == way
    tab.run("document.querySelector('table.schedules th button').click()")
    names = [words.split()[0] for words in tab.run(column.replace(f"{head}.cellIndex", "0"))]
    assert names == sorted(names)


def test_on_paper_a_picture_stands_in(tab, pages):
    tab.open(pages["teaching"])
    tab.ask("Emulation.setEmulatedMedia", media="print")
    seen = "(name) => [...document.querySelectorAll(name)].some((one) => one.getClientRects().length > 0)"
    assert tab.run(f"({seen})('.static')")
    assert not tab.run(f"({seen})('#timelines')")
    tab.ask("Emulation.setEmulatedMedia", media="")


def test_an_old_browser_is_told_and_keeps_the_pictures(tab, pages):
    hidden = tab.ask("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
    tab.open(pages["teaching"])
    tab.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=hidden["identifier"])
    assert "older than 2023" in tab.run("document.getElementById('timelines').textContent")
    assert tab.run("document.querySelector('.static').getClientRects().length > 0")
