"""The best order for measured stage times, predicted and, where asked, run beside the one in use."""

from pipesim.evidence.tuning.outcome import Tuning
from pipesim.evidence.tuning.tune import tune

__all__ = ["Tuning", "tune"]
