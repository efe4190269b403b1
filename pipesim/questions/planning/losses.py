"""Where a step goes: the work itself, and what is lost beside it; the parts add up to the step time."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pipesim.prediction import Prediction
from pipesim.prediction.step_breakdown import mean_of_parts

_COMMUNICATION = ("tensor_parallel_s", "other_exchanges_s", "exposed_p2p_s", "exposed_collective_s")


@dataclass(frozen=True, slots=True)
class Losses:
    """Seconds of a step: means over the ranks, and the idle time of the busiest one.

    Parameters
    ----------
    compute_s
        The model's own forward and backward, the layers' fixed overhead with them.
    recompute_s
        Forwards that the backward runs again.
    communication_s
        Collectives inside the stages, and messages between them, that nothing hides.
    imbalance_s
        What the mean rank waits because the busiest one has more to do.
    bubble_s
        The busiest rank's warm-up, cool-down, and waiting for other ranks to compute.
    sync_s
        Gradient synchronisation after the makespan.
    optimizer_s
        Optimizer.
    """

    compute_s: float
    recompute_s: float
    communication_s: float
    imbalance_s: float
    bubble_s: float
    sync_s: float
    optimizer_s: float

    def to_dict(self) -> dict[str, float]:
        """Plain data for JSON."""
        return asdict(self)


def losses_of(result: Prediction) -> Losses:
    """Attribute a result's step time."""
    parts = result.breakdown
    recompute = float(mean_of_parts(result.schedule, result.costs, ("recompute",)))
    return Losses(
        compute_s=float(parts["compute_s"]) + float(parts["overhead_s"]) - recompute,
        recompute_s=recompute,
        communication_s=float(sum(parts[name] for name in _COMMUNICATION)),
        imbalance_s=float(parts["imbalance_s"]),
        bubble_s=float(parts["bubble_s"]),
        sync_s=float(parts["data_parallel_s"]),
        optimizer_s=float(parts["optimizer_s"]),
    )
