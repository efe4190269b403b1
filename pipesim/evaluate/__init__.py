"""Start and end of every action where nothing contends: the longest path through a schedule.

`evaluate` is the exact reference in plain Python; `PreparedSchedule` does the same compiled, many times over.
`StepProgram` adds what ends a step. Compiled code lives in this package alone, loaded when first asked for.
"""

from pipesim.evaluate.exact import evaluate
from pipesim.evaluate.prepared import PreparedSchedule
from pipesim.evaluate.spans import Spans
from pipesim.evaluate.step_program import StepProgram

__all__ = ["PreparedSchedule", "Spans", "StepProgram", "evaluate"]
