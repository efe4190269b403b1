"""Reader of one PyTorch profiler (Kineto) trace: the work in it, and the pipeline action of each piece.

An annotation in such a trace is the time of the thread that wrote it. On a GPU that is not when its kernels
run, so kernels are assigned to the annotation in which they were launched, by their correlation with the
launch or by the arrow from it. On a CPU the operators inside the annotation are the work, and waits are not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError, ScheduleError
from pipesim.ir.actions import Action, Op

_US = 1e-6
_LONGEST_US = 1e18
_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_SINGLE_STAGE = re.compile(r"(Forward|Backward) (\d+)")
_BYTES_OF = {"float": 4, "bfloat16": 2, "half": 2, "double": 8, "int": 4, "long": 8, "byte": 1}
HERE = -1
"""Stage of an action whose annotation names none: torch's schedules of one stage a rank."""


@dataclass(slots=True)
class TracedAction:
    """One action: what its kernels (or operators) span, and the transfers that it started, in seconds."""

    action: Action
    start_s: float = float("inf")
    end_s: float = float("-inf")
    transfer_start_s: float = float("inf")
    transfer_end_s: float = float("-inf")
    transfer_bytes: float = float("nan")
    over_s: float = float("nan")
    """On a CPU, when the annotation was over."""

    @property
    def is_computation(self) -> bool:
        """F, B, I, W, or an F and a B as a pair."""
        return self.action.op <= Op.W or bool(self.action.parts)

    @property
    def parts(self) -> tuple[Action, ...]:
        """The action, or both of a pair."""
        return self.action.parts or (self.action,)

    @property
    def has_work(self) -> bool:
        """Whether anything was found to be of it."""
        return self.end_s > self.start_s


@dataclass(frozen=True, slots=True)
class Trace:
    """What one process recorded.

    Parameters
    ----------
    path : Path
        Where from.
    rank, world_size : int or None
        As the trace says.
    on_gpu : bool
        Whether work is that of kernels.
    host : str or None
        Name of the machine, as the trace says.
    actions : list of TracedAction
        In the order of their annotations.
    unused : tuple of str
        What could not be used, and why.
    """

    path: Path
    rank: int | None
    world_size: int | None
    on_gpu: bool
    host: str | None
    actions: list[TracedAction]
    unused: tuple[str, ...]


def is_trace(content: Any) -> bool:
    """Whether parsed JSON is a profiler's trace."""
    return isinstance(content, dict) and isinstance(content.get("traceEvents"), list)


def read_trace(path: Path, content: Any) -> Trace:
    """Find the pipeline actions of a trace and their work.

    Actions are known by the annotations of torch.distributed.pipelining: ``PP:0F3`` (stage 0, microbatch 3),
    ``PP:(0F3;7B1)OVERLAP_F_B`` and, with one stage a rank, ``Forward 3``.

    Raises
    ------
    ScenarioError
        If there are none, a time is no number, or the trace shows only the host of a GPU.
    """
    events = [event for event in content["traceEvents"] if isinstance(event, dict)]
    _refuse_odd_times(path, events)
    spans = [event for event in events if event.get("ph") == "X" and "ts" in event]
    annotations = [
        (float(event["ts"]), float(event["ts"]) + float(event.get("dur", 0)), action)
        for event in spans
        if event.get("cat") == "user_annotation"
        and (action := action_of(str(event.get("name", "")))) is not None
    ]
    names = list(dict.fromkeys(str(e.get("name")) for e in spans if e.get("cat") == "user_annotation"))
    if not annotations:
        shown = f"found {', '.join(names[:5])}" if names else "there are no annotations"
        raise ScenarioError(
            f"no annotation names a pipeline action, as PP:0F3 or Forward 3 do; {shown}. Torch's "
            f"Schedule1F1B writes none: record its order in torch's runtime (pipesim schedule export 1f1b, "
            f"pipesim.torch_schedule), or as ScheduleInterleaved1F1B with one stage a rank",
            file=str(path),
        )
    kernels = [event for event in spans if event.get("cat") in _GPU_WORK]
    saw_gpu = any(event.get("cat") in _LAUNCHES for event in spans) or bool(content.get("deviceProperties"))
    if saw_gpu and not kernels:
        raise ScenarioError(
            "shows only the host of a GPU: annotations are not when kernels run; record CUDA activities too",
            file=str(path),
        )
    annotations.sort(key=lambda found: found[:2])
    actions = _Assignment(annotations)
    unused = []
    if kernels:
        unused += _assign_kernels(actions, kernels, events)
    else:
        for event in spans:
            name = str(event.get("name", ""))
            if name.endswith(":send"):
                actions.add_bytes(event)
            if event.get("cat") == "cpu_op" and not name.startswith(("c10d::", "gloo")):
                actions.add_work(float(event["ts"]), float(event["ts"]), float(event.get("dur", 0)))
        actions.note_ends()
    # An I may have none: of the first stage torch leaves all to W.
    idle = sum(not t.has_work for t in actions.found if t.is_computation and t.action.op is not Op.I)
    if idle:
        unused.append(f"{idle} actions without work of their own: an annotation is time of the CPU")
    about = content.get("distributedInfo")
    about = about if isinstance(about, dict) else {}
    return Trace(
        path=path,
        rank=about.get("rank"),
        world_size=about.get("world_size"),
        on_gpu=bool(kernels),
        host=str(content["host_name"]) if "host_name" in content else None,
        actions=actions.found,
        unused=tuple(unused),
    )


def action_of(name: str) -> Action | None:
    """Parse an annotation's name; None where it names no action."""
    if name.startswith("PP:"):
        try:
            return Action.parse(name.removeprefix("PP:"))
        except ScheduleError:
            return None
    matched = _SINGLE_STAGE.fullmatch(name)
    if matched is None:
        return None
    return Action(Op.F if matched[1] == "Forward" else Op.B, HERE, int(matched[2]))


class _Assignment:
    """Annotations in order of time; the innermost at a time gets what was launched then."""

    def __init__(self, annotations: list[tuple[float, float, Action]]) -> None:
        self._spans = [(begin, end) for begin, end, _ in annotations]
        self.found = [TracedAction(action) for _, _, action in annotations]

    def at(self, time: float) -> TracedAction | None:
        from bisect import bisect_right

        place = bisect_right(self._spans, (time, float("inf"))) - 1
        # Annotations of actions follow each other; a few may be nested.
        for index in range(place, max(-1, place - 8), -1):
            if self._spans[index][1] >= time:
                return self.found[index]
        return None

    def add_work(self, launched: float, begin: float, duration: float) -> bool:
        found = self.at(launched)
        if found is None:
            return False
        found.start_s = min(found.start_s, begin * _US)
        found.end_s = max(found.end_s, (begin + duration) * _US)
        return True

    def add_bytes(self, event: dict[str, Any]) -> None:
        """Take the size of what a call sends, where shapes were recorded."""
        found = self.at(float(event["ts"]))
        arguments = event.get("args") or {}
        dims, kinds = arguments.get("Input Dims"), arguments.get("Input type")
        if found is None or not dims or not kinds:
            return
        size = _BYTES_OF.get(str(kinds[0]).lower().removeprefix("c10::"))
        if size and all(isinstance(one, int) for one in dims[0]):
            found.transfer_bytes = float(prod(dims[0])) * size

    def note_ends(self) -> None:
        for found, (_, end) in zip(self.found, self._spans, strict=True):
            found.over_s = end * _US

    def add_transfer(self, launched: float, event: dict[str, Any]) -> None:
        found = self.at(launched)
        if found is None:
            return
        begin = float(event["ts"])
        found.transfer_start_s = min(found.transfer_start_s, begin * _US)
        found.transfer_end_s = max(found.transfer_end_s, (begin + float(event.get("dur", 0))) * _US)
        arguments = event.get("args") or {}
        count = arguments.get("In msg nelems") or arguments.get("Out msg nelems")
        size = _BYTES_OF.get(str(arguments.get("dtype", "")).lower())
        if count and size:
            found.transfer_bytes = float(count) * size


def _assign_kernels(
    actions: _Assignment, kernels: list[dict[str, Any]], events: list[dict[str, Any]]
) -> list[str]:
    """Give each kernel to the action that launched it; say how many could not be given to any."""
    launched_at = _launches(events)
    arrows = _arrows(events)
    num_unknown = num_of_graphs = 0
    for kernel in kernels:
        arguments = kernel.get("args") or {}
        name = str(kernel.get("name", ""))
        begin = float(kernel["ts"])
        launched = launched_at.get(arguments.get("correlation"))
        if launched is None:
            launched = arrows.get((kernel.get("pid"), kernel.get("tid"), begin))
        in_graph = bool(arguments.get("graph node id"))
        if launched is None:
            num_unknown, num_of_graphs = num_unknown + (not in_graph), num_of_graphs + in_graph
        elif "sendrecv" in name.lower():
            actions.add_transfer(launched, kernel)
        elif name.lower().startswith("nccl"):
            continue
        elif not actions.add_work(launched, begin, float(kernel.get("dur", 0))) and in_graph:
            num_of_graphs += 1
    words = []
    if num_unknown:
        words.append(f"{num_unknown} of {len(kernels)} kernels without a launch in the trace")
    if num_of_graphs:
        words.append(f"{num_of_graphs} kernels of CUDA graphs that no action launched: captured with others")
    return words


def _refuse_odd_times(path: Path, events: list[dict[str, Any]]) -> None:
    for number, event in enumerate(events):
        for key in ("ts", "dur"):
            value = event.get(key, 0)
            if not (isinstance(value, int | float) and abs(value) < _LONGEST_US):
                raise ScenarioError(
                    f"traceEvents: event {number} has {key!r} {str(value)[:40]!r}; expected microseconds",
                    file=str(path),
                )


def _launches(events: list[dict[str, Any]]) -> dict[Any, float]:
    return {
        arguments["correlation"]: float(event["ts"])
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in (arguments := event.get("args") or {})
    }


def _arrows(events: list[dict[str, Any]]) -> dict[tuple[Any, Any, float], float]:
    """Where arrows from launches end, as (process, thread, time), and when they begin."""
    by_id: dict[Any, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event.get("ph") in ("s", "f") and event.get("cat") == "ac2g" and "ts" in event:
            by_id[event.get("id")][str(event["ph"])].append(event)
    return {
        (target.get("pid"), target.get("tid"), float(target["ts"])): float(edges["s"][0]["ts"])
        for edges in by_id.values()
        if edges["s"]
        for target in edges["f"]
    }
