"""The discrete-event simulator: SimPy processes for GPUs, links and collectives."""

from pipesim.timing.engine.simulation import simulate

__all__ = ["simulate"]
