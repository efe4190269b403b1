"""What the ranks compute, as plain data that travels to their processes: a model, or times to sleep."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from pipesim.costs import CostTable, build_costs
from pipesim.costs.build import traced_split
from pipesim.costs.rows import row_durations
from pipesim.errors import ExecutionError
from pipesim.ir.actions import ActionTable, Lowered, Op
from pipesim.scenario import ResolvedScenario
from pipesim.scenario.resolved import LayerSplit, Transformer

EVEN = LayerSplit("even")


@dataclass(frozen=True, slots=True)
class TransformerWorkload:
    """A decoder-only transformer with cross-entropy on random tokens.

    Parameters
    ----------
    shape : Transformer
        As in the scenario. A head that shares the embedding's weights gets its own: the two may lie on
        different ranks.
    split : LayerSplit
        How layers fall to stages; ``even`` or a list.
    microbatch_size : int
        Sequences of a microbatch.
    dtype : str
        Name of a torch dtype.
    seed : int
        Of weights and data.
    """

    shape: Transformer
    split: LayerSplit = EVEN
    microbatch_size: int = 1
    dtype: str = "float32"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CnnWorkload:
    """A small residual convolutional network that classifies random images."""

    num_layers: int = 8
    channels: int = 16
    image_size: int = 16
    num_classes: int = 10
    split: LayerSplit = EVEN
    microbatch_size: int = 4
    dtype: str = "float32"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class FactoryWorkload:
    """A user's model: ``module:factory`` names a function that returns a `PipelineModel`.

    See `pipesim.costs.traced.pipeline_model.load_pipeline_model` for `directory` and `microbatch_size`.
    """

    factory: str
    split: LayerSplit = EVEN
    dtype: str = "float32"
    seed: int = 0
    directory: str | None = None
    microbatch_size: int | None = None

    def parts(self) -> tuple[str, str]:
        """Split the name into module and factory.

        Raises
        ------
        ExecutionError
            If it is not of that form.
        """
        module, _, name = self.factory.partition(":")
        if not module or not name:
            raise ExecutionError(f"found {self.factory!r}; expected module:factory")
        return module, name


ModelWorkload: TypeAlias = TransformerWorkload | CnnWorkload | FactoryWorkload


@dataclass(frozen=True, slots=True)
class EmulatedWorkload:
    """Times that the emulated device takes, and real bytes that it sends; seconds and bytes.

    Parameters
    ----------
    row_s : tuple of float
        Duration of each row of the lowered schedule; both rows of an overlapped pair hold the pair's.
    boundary_bytes, gradient_bytes : tuple of int, length S
        What leaves a stage forward (and comes back), and what replicas reduce.
    skip_bytes : tuple of int
        What goes through each skip connection (and comes back).
    """

    row_s: tuple[float, ...]
    boundary_bytes: tuple[int, ...]
    gradient_bytes: tuple[int, ...]
    skip_bytes: tuple[int, ...] = ()


Workload: TypeAlias = ModelWorkload | EmulatedWorkload


def emulated_workload(schedule: Lowered, costs: CostTable) -> EmulatedWorkload:
    """Lay the durations of a cost table along the rows of a lowered schedule."""
    durations = np.asarray(row_durations(schedule, costs), dtype=float)
    for row in np.flatnonzero(schedule.op == Op.OPTIMIZER).tolist():
        durations[row] = costs.optimizer_s[schedule.stages_of(int(schedule.rank[row]))].sum()
    return EmulatedWorkload(
        row_s=tuple(durations.tolist()),
        boundary_bytes=tuple(int(amount) for amount in costs.boundary_bytes),
        gradient_bytes=tuple(int(amount) for amount in costs.gradient_bytes),
        skip_bytes=tuple(int(skip.nbytes) for skip in costs.skips),
    )


def workload_from_scenario(scenario: ResolvedScenario, schedule: Lowered, device: str) -> Workload:
    """Take the workload from a scenario: its costs for the emulated device, else its model.

    Parameters
    ----------
    scenario : ResolvedScenario
        Read and resolved.
    schedule : Lowered
        Lowered.
    device : {"cpu", "cuda", "emulated"}
        Where it will run: on a GPU in the scenario's precision, on CPUs in float32.

    Raises
    ------
    ExecutionError
        If the scenario states costs only and the device is real.
    """
    if device == "emulated":
        return emulated_workload(schedule, build_costs(scenario, num_chunks=num_chunks_of(schedule)))
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(scenario.precision.compute, "bfloat16")
    if device != "cuda":
        dtype = "float32"
    if scenario.torch_model is not None:
        return FactoryWorkload(
            scenario.torch_model.factory,
            split=_traced_split(scenario, schedule),
            dtype=dtype,
            seed=scenario.seed,
            directory=scenario.torch_model.directory,
            microbatch_size=scenario.batch.micro,
        )
    if scenario.model is None:
        raise ExecutionError(
            f"the scenario {scenario.name!r} states costs and no model, so there is nothing to compute; "
            f"add `model:`, or use --device emulated"
        )
    return TransformerWorkload(
        shape=scenario.model,
        split=scenario.layers,
        microbatch_size=scenario.batch.micro,
        dtype=dtype,
        seed=scenario.seed,
    )


def _traced_split(scenario: ResolvedScenario, schedule: Lowered) -> LayerSplit:
    """Cut the layers as the prediction does, which knows what they cost."""
    if scenario.layers.kind != "balanced":
        return scenario.layers
    return LayerSplit("list", traced_split(scenario, schedule.num_stages))


def num_chunks_of(schedule: ActionTable) -> int:
    """v, by which S = p * v: a second model replica's stages are not counted."""
    return schedule.num_stages // schedule.num_ranks


def describe(workload: Workload) -> dict[str, Any]:
    """Plain data for the record of a run."""
    facts = asdict(workload)
    facts.pop("row_s", None)
    return {"kind": type(workload).__name__.removesuffix("Workload").lower(), **facts}
