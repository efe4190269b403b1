"""The best order for measured stage times, predicted and, where asked, run beside the one in use."""

from pipesim.evidence.tuning.tune import tune
from pipesim.evidence.tuning.tuning import Tuning

__all__ = ["Tuning", "tune"]
