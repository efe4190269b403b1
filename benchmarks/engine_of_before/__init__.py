"""The discrete-event simulator: SimPy processes for GPUs, links and collectives."""

from engine_of_before.simulation import simulate

__all__ = ["simulate"]
