"""The GPU validation, end to end on CPUs at a small size."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_validation.py"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        specification = importlib.util.spec_from_file_location("gpu_validation", SCRIPT)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        patch.setitem(sys.modules, "gpu_validation", module)
        specification.loader.exec_module(module)
        yield module


def test_it_runs_end_to_end_on_cpus(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = script.Size(2, 1, 64, 32, (4,), 3, "float32")
    monkeypatch.setattr(script, "default_size", lambda device, num_gpus: small)
    script.main(["--device", "cpu", "-o", str(tmp_path / "result.json")])
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["ranks_are"] == "processes on CPUs, gloo"
    parts = result["parts"]
    assert list(parts) == list(script.PARTS)
    for name, (_, needs_lanes) in script.PARTS.items():
        assert ("left_out" in parts[name]) == needs_lanes
        assert "failed" not in parts[name]
    assert set(parts["gradients"]["errors"]) == {*script.SCHEDULES, *script.TWICE_HELD}
    assert parts["gradients"]["kept"]
    assert parts["split"]["linear_split_over_whole"] > 0
    rows = parts["timeline"]["rows"]
    assert [row["schedule"] for row in rows] == list(script.SCHEDULES)
    for row in rows:
        assert row["measured_makespan_s"] > 0
        assert row["predicted_makespan_s"] > 0
        assert 0 < row["measured_bubble_ratio"] < 1
        assert row["num_disturbed_steps"] <= row["num_steps"] == 3
        error = (row["predicted_makespan_s"] - row["measured_makespan_s"]) / row["measured_makespan_s"]
        assert row["makespan_error"] == pytest.approx(error)


def test_a_part_that_fails_is_written_and_the_next_one_goes_on(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(machine: object, size: object) -> dict[str, object]:
        raise RuntimeError("no kernel image")

    def out_of_bounds(machine: object, size: object) -> dict[str, object]:
        return {"error": 0.5, "limits": {"error": [0, 0.1]}}

    monkeypatch.setattr(script, "PARTS", {"a": (broken, False), "b": (out_of_bounds, False)})
    machine = SimpleNamespace(device="cpu", words="", in_lanes=False)
    kept = []
    script.run_parts(
        machine,
        script.Size(2, 1, 64, 32, (4,), 1, "float32"),
        ["a", "b"],
        lambda document: kept.append(json.loads(json.dumps(document["parts"]))),
    )
    assert list(kept[0]) == ["a"]
    assert kept[0]["a"]["failed"] == "RuntimeError: no kernel image"
    assert kept[1]["b"]["kept"] is False
