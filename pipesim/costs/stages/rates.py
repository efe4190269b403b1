"""What an accelerator sustains."""

from __future__ import annotations

from pipesim.errors import ScenarioError
from pipesim.scenario.hardware import Accelerator
from pipesim.scenario.resolved import Efficiency


def peak_flops(accelerator: Accelerator, number_format: str, *, file: str | None = None) -> float:
    """Dense peak of an accelerator in a number format.

    Raises
    ------
    ScenarioError
        If the accelerator has no such units.
    """
    try:
        return accelerator.peak_flops[number_format]
    except KeyError:
        formats = ", ".join(sorted(accelerator.peak_flops))
        raise ScenarioError(
            f"{accelerator.name} has no {number_format} rate; it has {formats}", file=file, key="precision"
        ) from None


def memory_bytes_per_s(accelerator: Accelerator, efficiency: Efficiency) -> float:
    """Rate at which memory-bound kernels read and write."""
    return accelerator.memory_bytes_per_s * efficiency.memory
