"""The one road from a scenario to its numbers: nothing else picks what times a schedule, or its costs."""

from pipesim.prediction.preparation import Prepared, prepare
from pipesim.prediction.programs import Programs
from pipesim.prediction.repeats import Repeats, repeat
from pipesim.prediction.result import Asynchrony, Prediction
from pipesim.prediction.road import (
    Timing,
    least_step_s,
    needs_engine,
    predict,
    predict_prepared,
    predict_within,
    replay,
)
from pipesim.prediction.schedule_source import is_scenario_file, load_csv, load_order, schedule_of, shape_of

__all__ = [
    "Asynchrony",
    "Prediction",
    "Prepared",
    "Programs",
    "Repeats",
    "Timing",
    "is_scenario_file",
    "least_step_s",
    "load_csv",
    "load_order",
    "needs_engine",
    "predict",
    "predict_prepared",
    "predict_within",
    "prepare",
    "repeat",
    "replay",
    "schedule_of",
    "shape_of",
]
