"""Start and end of every action where nothing contends: the longest path through a schedule.

`evaluate` is the exact reference in plain Python; `PreparedSchedule` does the same compiled, many times over.
Compiled code lives in this package alone and is loaded when it is first asked for.
"""

from pipesim.evaluate.exact import evaluate
from pipesim.evaluate.prepared import PreparedSchedule
from pipesim.evaluate.spans import Spans

__all__ = ["PreparedSchedule", "Spans", "evaluate"]
