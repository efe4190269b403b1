"""How true predictions are: schedules run for real, and predicted from a calibration on one of them."""

from pipesim.evidence.validation.campaign import Validation, summary_of, validate
from pipesim.evidence.validation.validation_row import ValidationRow

__all__ = ["Validation", "ValidationRow", "summary_of", "validate"]
