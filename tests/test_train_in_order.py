"""The example script trains under torchrun in an order of ours, as one process without a pipeline would."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from pipesim.schedules import Shape, generate  # noqa: E402 - needs torch

SCRIPT = Path(__file__).parents[1] / "scenarios" / "train_in_order.py"
STEPS, LAYERS, MICROBATCHES, RANKS = 2, 4, 4, 2


def losses_of_one_process() -> list[float]:
    spec = importlib.util.spec_from_file_location("train_in_order", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    stages = [script.build_stage(stage, 2 * RANKS, LAYERS) for stage in range(2 * RANKS)]
    model = torch.nn.Sequential(*stages)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for step in range(STEPS):
        inputs, targets = script.batch_of(step, MICROBATCHES)
        loss = script.loss_of(model(inputs), targets)
        found.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return found


def test_the_example_under_torchrun(tmp_path: Path) -> None:
    csv = tmp_path / "zb-v.csv"
    csv.write_text(generate("zb-v", Shape(RANKS, 2, MICROBATCHES)).to_csv())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launched = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
    launched += ["--master-addr=127.0.0.1", f"--master-port={port}", str(SCRIPT), str(csv)]
    launched += [f"--steps={STEPS}", f"--layers={LAYERS}", f"--profile={tmp_path / 'traces'}"]
    lo = "lo" if sys.platform == "linux" else "lo0"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": lo, "PYTHONPATH": str(SCRIPT.parents[1])}
    with subprocess.Popen(
        launched, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            printed, said = run.communicate(timeout=400)
        finally:
            run.terminate()  # torchrun ends its ranks, which are sessions of their own, if it may answer
    assert run.returncode == 0, said[-2000:]
    losses = [float(text) for text in re.findall(r"loss (\d+\.\d+)", printed)]
    assert losses == pytest.approx(losses_of_one_process(), abs=2e-4)
    events = json.loads((tmp_path / "traces" / "rank1.json").read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"PP:1F0", "PP:2F0", "PP:1I0", "PP:1W0"} <= names
