"""What an accelerator sustains."""

from __future__ import annotations

from pipesim.errors import ScenarioError
from pipesim.scenario.hardware import PEAK_OF, Accelerator
from pipesim.scenario.resolved import Efficiency


def peak_flops(accelerator: Accelerator, number_format: str, *, file: str | None = None) -> float:
    """Dense peak of an accelerator in a number format.

    Raises
    ------
    ScenarioError
        If the accelerator has no such units.
    """
    try:
        return accelerator.peak_flops[PEAK_OF.get(number_format, number_format)]
    except KeyError:
        formats = ", ".join(sorted(accelerator.peak_flops))
        raise ScenarioError(
            f"{accelerator.name} has no {number_format} rate; it has {formats}", file=file, key="precision"
        ) from None


def reference_flops(
    accelerator: Accelerator, efficiency: Efficiency, number_format: str, *, file: str | None = None
) -> float:
    """Rate that the shares of an efficiency set are of, on this accelerator.

    Raises
    ------
    ScenarioError
        If the accelerator has no such units.
    """
    own = peak_flops(accelerator, number_format, file=file)
    stated = efficiency.peak_flops.get(PEAK_OF.get(number_format, number_format), own)
    return stated * efficiency.cards.get(accelerator.name, 1.0)


def memory_bytes_per_s(accelerator: Accelerator, efficiency: Efficiency) -> float:
    """Rate at which memory-bound kernels read and write."""
    return accelerator.memory_bytes_per_s * efficiency.memory
