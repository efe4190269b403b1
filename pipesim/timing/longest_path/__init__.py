"""Start and end of every action where nothing contends: the longest path through a schedule.

`evaluate` is the exact reference in plain Python; `PreparedSchedule` does the same compiled, many times over.
`StepProgram` adds what ends a step. Compiled code lives in this package alone, loaded when first asked for.
"""

from pipesim.timing.longest_path.exact import evaluate
from pipesim.timing.longest_path.reusable_program import PreparedSchedule
from pipesim.timing.longest_path.spans import Spans
from pipesim.timing.longest_path.step_program import StepProgram

__all__ = ["PreparedSchedule", "Spans", "StepProgram", "evaluate"]
