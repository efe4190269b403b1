"""The one road from a scenario to its numbers: nothing else picks what times a schedule, or its costs."""

from pipesim.prediction.differences import (
    SHARE_OF_DIFFERENCE,
    Difference,
    difference,
    difference_of,
    is_cut_alike,
)
from pipesim.prediction.orders import load_order, schedule_of
from pipesim.prediction.preparation import prepare, prepare_order
from pipesim.prediction.prepared import Prepared
from pipesim.prediction.programs import Programs
from pipesim.prediction.repeats import Repeats, repeat
from pipesim.prediction.result import Asynchrony, Prediction
from pipesim.prediction.road import predict, predict_prepared, predict_within
from pipesim.prediction.schedule_source import is_scenario_file, load_csv, shape_of
from pipesim.prediction.stepping import Timing, least_step_s, needs_engine, replay, timed_step

__all__ = [
    "SHARE_OF_DIFFERENCE",
    "Asynchrony",
    "Difference",
    "Prediction",
    "Prepared",
    "Programs",
    "Repeats",
    "Timing",
    "difference",
    "difference_of",
    "is_cut_alike",
    "is_scenario_file",
    "least_step_s",
    "load_csv",
    "load_order",
    "needs_engine",
    "predict",
    "predict_prepared",
    "predict_within",
    "prepare",
    "prepare_order",
    "repeat",
    "replay",
    "schedule_of",
    "shape_of",
    "timed_step",
]
