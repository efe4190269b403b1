"""The report of 64 ranks and 512 microbatches in a browser: its size, first paint, and frames while zooming.

``python benchmarks/test_report_page_benchmark.py`` writes what it measures to benchmarks/results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))

from headless_browser import CUT, PROGRAM, WHY_NOT, browser  # noqa: E402

SCENARIO = """name: 64 ranks, 512 microbatches
parallel: {pipeline: 64}
batch: {microbatches: 512}
schedule: 1f1b
costs: {forward: 20 ms, backward: 40 ms, p2p: 1 ms}
"""
MOST_BYTES, FIRST_PAINT_MS, FRAME_MS = 10_000_000, 2000, {2: 60, 1: 33}
FRAMES = 60

# Each frame zooms, and is as long as until the next one.
ZOOM = """(async (frames) => {
  const root = document.getElementById('timelines'), view = root.timelines.view;
  root.scrollIntoView();
  view.show(0, view.longest);
  const frame = () => new Promise(requestAnimationFrame), times = [];
  for (let i = 0; i < 5; i++) await frame();
  let last = await frame();
  for (let i = 0; i < frames; i++) {
    view.zoom(i < frames / 2 ? 1.15 : 1 / 1.15, 0.37);
    const now = await frame();
    times.push(now - last);
    last = now;
  }
  times.sort((one, other) => one - other);
  return { lanes: view.lanes.length, median_ms: times[frames >> 1], longest_ms: times[frames - 1] };
})(%d)"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
HIDE_ONE = "[...document.querySelectorAll('table.schedules input')].find((one) => one.checked).click()"


def measured(folder: Path) -> dict[str, Any]:
    """Make the page, open it in every size and colour scheme, and zoom."""
    scenario, page = folder / "large.yaml", folder / "large.html"
    scenario.write_text(SCENARIO)
    command = [sys.executable, "-m", "pipesim", "report", str(scenario), "-o", str(page)]
    subprocess.run([*command, "--schedules", "1f1b,zb-h1,zb-v"], check=True, capture_output=True, cwd=ROOT)
    rows = []
    with browser() as tab:
        for width, height in ((1280, 900), (390, 844)):
            for dark in (False, True):
                tab.open(page, width=width, height=height, dark=dark, touch=width < 500)
                paint_ms, cut = tab.run(PAINT), tab.run(CUT)
                zooms = [tab.run(ZOOM % FRAMES)]
                tab.run(HIDE_ONE)
                zooms.append(tab.run(ZOOM % FRAMES))
                row = {"width": width, "dark": dark, "first_paint_ms": paint_ms, "zoom": zooms}
                rows.append({**row, "complaints": tab.complaints, "cut": cut})
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "load": os.getloadavg(),
        "browser": subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout.strip(),
        "bytes": page.stat().st_size,
        "rows": rows,
    }


@pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)
def test_the_report_of_a_large_step_is_small_and_quick(tmp_path: Path) -> None:
    found = measured(tmp_path)
    assert found["bytes"] < MOST_BYTES
    for row in found["rows"]:
        assert row["complaints"] == row["cut"] == []
        assert row["first_paint_ms"] < FIRST_PAINT_MS
        for zoom in row["zoom"]:
            assert zoom["median_ms"] <= FRAME_MS[zoom["lanes"]], row


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        result = measured(Path(temporary))
    output = ROOT / "benchmarks" / "results" / f"report-page-{result['date']}.json"
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(output)
