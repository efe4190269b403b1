"""Torch's own pipeline runtime, loaded with our CSV, is the second opinion on gradients."""

# ruff: noqa: E402 - what follows needs torch

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from executor_reference import relative

from pipesim.executor import FactoryWorkload
from pipesim.executor.job import Job
from pipesim.executor.lanes import run_in_lanes
from pipesim.ir import lower
from pipesim.schedules import Shape, generate

WANTED = [("gpipe", 1, 4), ("1f1b", 1, 5), ("zb-h1", 1, 5), ("interleaved-1f1b", 2, 4), ("zb-v", 2, 5)]
WANTED += [("dualpipe-v", 2, 5)]


def test_torchs_runtime_makes_the_same_gradients_of_our_csv(tmp_path: Path) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    if not hasattr(getattr(schedules, "_PipelineScheduleRuntime", None), "_load_csv"):
        pytest.skip("this torch cannot load a schedule")
    here = Path(__file__).parent
    subprocess.run(
        [sys.executable, here / "executor_torch_runtime.py", tmp_path / "out"]
        + [":".join(map(str, one)) for one in WANTED],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)]),
            "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        },
        check=True,
        timeout=100,
        capture_output=True,
    )
    theirs = {}
    for rank in range(2):
        with np.load(tmp_path / f"out.{rank}.npz") as file:
            theirs |= dict(file)
    torch.set_num_threads(1)
    workload = FactoryWorkload("executor_models:mlp", dtype="float64")
    num_compared = 0
    for name, chunks, microbatches in WANTED:
        schedule = lower(generate(name, Shape(2, chunks, microbatches)))
        for result in run_in_lanes(Job(schedule, workload, "cpu", keep_state=True)):
            for parameter, gradient in result.gradients.items():
                assert relative(gradient, theirs[f"{name}/{parameter}"]) < 1e-12
                num_compared += 1
    assert num_compared == len(theirs) == len(WANTED) * 8 * 4
