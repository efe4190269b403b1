"""How true predictions are: schedules run for real, and predicted from a calibration on one of them."""

from pipesim.evidence.validation.campaign import Validation, summary_of, validate
from pipesim.evidence.validation.rows import Row

__all__ = ["Row", "Validation", "summary_of", "validate"]
