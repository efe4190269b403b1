"""The discrete-event simulator: SimPy processes for GPUs, links and collectives."""

from pipesim.timing.engine.giving_up import GiveUp, TooLongError
from pipesim.timing.engine.simulation import simulate

__all__ = ["GiveUp", "TooLongError", "simulate"]
