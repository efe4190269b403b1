"""What torch, Megatron and DeepSpeed would say to a schedule: by name and shape, or to a file.

A framework takes a schedule by name where `Family.known_as` has it and none of the family's refusals applies.
Torch's runtime also loads a file (``_load_csv``, torchtitan's ``pipeline_parallel_schedule_csv``); Megatron
and DeepSpeed read none, so a file suits them only if it is the very order that they would run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipesim.errors import ScheduleError
from pipesim.ir import check_messages, has_messages, validate
from pipesim.ir.actions import Schedule
from pipesim.ir.torch_limits import far_skips, torch_refusals
from pipesim.reading import csv_rows
from pipesim.schedules.registry import Shape, family, generate

FRAMEWORKS = ("torch", "Megatron", "DeepSpeed")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a framework says to one schedule and shape.

    Parameters
    ----------
    framework : str
        One of `FRAMEWORKS`.
    reasons : tuple of str
        Why it refuses; empty if it accepts.
    """

    framework: str
    reasons: tuple[str, ...]

    @property
    def accepts(self) -> bool:
        """The framework runs this schedule when asked for it by name."""
        return not self.reasons


def find_framework(name: str) -> str:
    """Look a framework up, whatever its case.

    Raises
    ------
    ScheduleError
        If it is none of `FRAMEWORKS`.
    """
    for framework in FRAMEWORKS:
        if framework.lower() == name.strip().lower():
            return framework
    raise ScheduleError(f"no framework is called {name!r}; there are: {', '.join(FRAMEWORKS)}")


def verdict(name: str, shape: Shape, framework: str) -> Verdict:
    """Ask one framework about a schedule by name.

    Raises
    ------
    ScheduleError
        If the schedule or the framework is unknown.
    """
    chosen, framework = family(name), find_framework(framework)
    try:
        chosen.check(shape)
    except ScheduleError as error:
        return Verdict(framework, (str(error),))
    missing = [] if framework in chosen.known_as else [f"has no {chosen.name} schedule"]
    refusals = [r.words for r in chosen.refusals if r.framework == framework and r.refuses(shape)]
    return Verdict(framework, tuple(missing + refusals))


def runs_only_as_csv(schedule: Schedule) -> bool:
    """Whether torch has no class for a schedule of the registry, and loads the CSV that is exported of it.

    Not of asynchronous ones: in a CSV there is no optimizer between microbatches.
    """
    chosen = family(schedule.name)
    return chosen.synchronous and "torch" not in chosen.known_as and not check_schedule(schedule, "torch")


def check_csv(text: str, framework: str, *, name: str = "csv") -> tuple[str, ...]:
    """Say why a framework would not run a schedule file; nothing if it would.

    Parameters
    ----------
    text : str
        Torch's form, with or without communication, in old or new letters.
    framework : str
        One of `FRAMEWORKS`.
    name : str
        What messages call the file.

    Raises
    ------
    ScheduleError
        If the text cannot be read, or the framework is unknown.
    """
    schedule = Schedule.from_csv(text, name=name)
    reasons = list(check_schedule(schedule, framework))
    if find_framework(framework) == "torch" and has_messages(schedule):
        rows = enumerate(row for _, row in csv_rows(text))
        ragged = [rank for rank, row in rows if row and not all(cell.strip() for cell in row)]
        if ragged:
            reasons.append(
                f"torch takes no empty cell in a file with communication; rank {ragged[0]} has one"
            )
    return tuple(reasons)


def check_schedule(schedule: Schedule, framework: str) -> tuple[str, ...]:
    """Say why a framework would not run a schedule; nothing if it would.

    What is wrong anywhere, such as a missing action or a deadlock, comes first and alone.

    Raises
    ------
    ScheduleError
        If the framework is unknown.
    """
    framework = find_framework(framework)
    computations = schedule.compute_only()
    try:
        validate(computations)
        if has_messages(schedule):
            check_messages(schedule)
    except ScheduleError as error:
        return (str(error),)
    if skipping := skip_refusals(schedule, framework):
        return skipping
    if framework == "torch":
        return tuple(torch_refusals(schedule))
    return tuple(_own_order_reasons(computations, framework))


def skip_refusals(schedule: Schedule, framework: str) -> tuple[str, ...]:
    """Say why a framework does not run a schedule's skip connections; nothing if it would or has none.

    Torch's stages send to the next and the one before (github.com/pytorch/pytorch/issues/127964), and so do
    Megatron's and DeepSpeed's, which hand what a later stage needs on from stage to stage.
    """
    words = far_skips(schedule)
    if not words:
        return ()
    return (f"{framework} sends between neighbouring stages only; skip connections go from {words}",)


def _own_order_reasons(computations: Schedule, framework: str) -> Iterator[str]:
    shape = Shape(computations.num_ranks, computations.num_chunks, computations.num_microbatches)
    name = "1f1b" if shape.num_chunks == 1 else "interleaved-1f1b"
    asked = verdict(name, shape, framework)
    if not asked.accepts:
        yield f"{framework} reads no schedule file, and for {shape}: {'; '.join(asked.reasons)}"
        return
    own = generate(name, shape)
    for rank in range(shape.num_ranks):
        theirs, ours = own.actions_of(rank), computations.actions_of(rank)
        for position, (expected, found) in enumerate(zip(theirs, ours, strict=False)):
            if expected != found:
                yield (
                    f"{framework} reads no schedule file and runs {name}, from which this one differs "
                    f"first on rank {rank}, action {position + 1}: {found} for {expected}"
                )
                return
        if len(theirs) != len(ours):
            yield f"{framework} reads no schedule file and runs {name}, with other actions on rank {rank}"
            return


def settings_by_name(order: Schedule) -> dict[str, str]:
    """Give settings with which Megatron-LM and DeepSpeed run this very order, where they can.

    Flags are those of Megatron-LM's arguments; m follows from the global batch.
    """
    p, num_chunks, m = order.num_ranks, order.num_chunks, order.num_microbatches
    virtual = f" --num-virtual-stages-per-pipeline-rank {num_chunks}" if num_chunks > 1 else ""
    settings = {
        "Megatron": f"--pipeline-model-parallel-size {p}{virtual} with {m} microbatches a step",
        "DeepSpeed": f"PipelineModule(num_stages={p}), gradient_accumulation_steps {m}",
    }
    return {name: words for name, words in settings.items() if not check_schedule(order, name)}
