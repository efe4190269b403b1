"""Random costs whose I and W together take from 1.0 to 1.4 times B, for the searched schedule."""

from __future__ import annotations

import numpy as np
from helpers import costs_of

from pipesim.costs import CostTable
from pipesim.schedules import Shape


def mixed_case(seed: int, *, budget: int, small: bool = False) -> tuple[Shape, CostTable]:
    """Uneven stages, splits that cost up to 40 % of B, p2p time, and a memory limit or none."""
    rng = np.random.default_rng(seed)
    p, v, m = (
        (2, 1, 3)
        if small
        else (int(rng.choice([2, 4])), int(rng.integers(1, 3)), int(rng.choice([4, 8, 16])))
    )
    forward = rng.uniform(0.6, 1.4, p * v)
    backward = 2 * forward * rng.uniform(0.9, 1.1, p * v)
    alike = rng.random() < 0.5
    both = backward * (rng.uniform(1.0, 1.4) if alike else rng.uniform(1.0, 1.4, p * v))
    share = rng.uniform(0.3, 0.7, p * v)
    times = {
        "forward_s": forward,
        "backward_s": backward,
        "input_gradient_s": both * share,
        "weight_gradient_s": both * (1 - share),
    }
    costs = costs_of(
        p * v,
        number=float,
        p2p_latency_s=float(rng.choice([0, 0.1, 0.3])),
        **{key: tuple(values.tolist()) for key, values in times.items()},
    )
    options: dict[str, object] = {"budget": budget}
    if not small and rng.random() < 0.6:
        options["max_in_flight"] = int(rng.integers(v, 2 * p * v + 1))
    return Shape(p, v, m, options), costs
