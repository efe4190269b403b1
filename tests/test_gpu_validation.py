"""The GPU validation, end to end on CPUs at a small size."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_validation.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("gpu_validation", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    sys.modules["gpu_validation"] = module
    specification.loader.exec_module(module)
    return module


def test_it_runs_end_to_end_on_cpus(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = script.Size(2, 1, 64, 32, (4,), 3, "float32")
    monkeypatch.setattr(script, "default_size", lambda device, num_gpus: small)
    script.main(["--device", "cpu", "-o", str(tmp_path / "result.json")])
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["ranks_are"] == "processes on CPUs, gloo"
    assert set(result["gradient_errors"]) == set(script.SCHEDULES)
    assert max(result["gradient_errors"].values()) < 1e-12
    assert [row["schedule"] for row in result["rows"]] == list(script.SCHEDULES)
    for row in result["rows"]:
        assert row["measured_makespan_s"] > 0
        assert row["predicted_makespan_s"] > 0
        assert 0 < row["measured_bubble_ratio"] < 1
        assert row["num_disturbed_steps"] <= row["num_steps"] == 3
        error = (row["predicted_makespan_s"] - row["measured_makespan_s"]) / row["measured_makespan_s"]
        assert row["makespan_error"] == pytest.approx(error)
    assert result["environment"]["torch"]


def test_wrong_gradients_stop_it(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "gradient_errors", lambda machine, size: {"gpipe": float("nan")})
    with pytest.raises(SystemExit, match="gradients of gpipe differ by more than 1e-12"):
        script.validate("cpu", script.Size(2, 1, 64, 32, (4,), 1, "float32"))
