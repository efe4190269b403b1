"""Plans of small spaces beside the engine on all that is in them, where traffic meets and elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from test_plan import every_configuration, small

from pipesim.questions.planning import plan

NUM_SPACES = 20
SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "gpipe", "dualpipe-v")
TOP = 5


def space(seed: int) -> tuple[Any, tuple[str, ...]]:
    """Draw a scenario and three schedules to plan it with."""
    rng = np.random.default_rng(seed)
    changes = {
        "model__num_hidden_layers": int(rng.choice([4, 6, 8])),
        "model__hidden_size": int(rng.choice([1024, 2048])),
        "cluster__nics_per_node": int(rng.choice([1, 2, 4])),
        "cluster__inter_node": str(rng.choice(["roce-100", "ib-ndr"])),
        "batch__global": int(rng.choice([8, 16])),
        "optimizer": str(rng.choice(["plain", "sharded"])),
        "parallel__overlap_gradients": str(bool(rng.random() < 0.3)).lower(),
    }
    if rng.random() < 0.5:
        changes["cluster__accelerator"] = "{preset: h100-sxm, memory: 6 GB}"
    chosen = rng.choice(SCHEDULES, size=3, replace=False)
    return small(**changes), tuple(str(name) for name in chosen)


@pytest.mark.parametrize("seed", range(NUM_SPACES))
def test_a_plan_is_what_the_engine_says_of_every_configuration(seed: int) -> None:
    scenario, schedules = space(seed)
    expected = every_configuration(scenario, schedules)
    found = plan(scenario, top=TOP, schedules=schedules, num_workers=1)
    assert found.certain
    assert [choice.step_time_s for choice in found.choices] == pytest.approx(
        [one[0] for one in expected[:TOP]], rel=1e-9
    )
