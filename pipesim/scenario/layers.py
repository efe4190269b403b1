"""How layers fall to stages: contiguous, every stage at least one layer, no layer lost."""

from __future__ import annotations

from pipesim.errors import ScenarioError
from pipesim.scenario.resolved import LayerSplit, ResolvedScenario


def split_layers(num_layers: int, num_stages: int, split: LayerSplit) -> tuple[int, ...]:
    """Count the layers of each stage.

    Parameters
    ----------
    num_layers : int
        Layers of the model.
    num_stages : int
        S = p * v; may differ from the scenario's own when several v are compared.
    split : LayerSplit
        As the scenario states it. ``even`` gives the remainder to the first stages, one layer each, so that
        the last stage, which has the output head, is never a larger one. ``balanced`` needs times, see
        `pipesim.costs.stages.balance`; layers of which nothing is known are balanced when they are even.

    Returns
    -------
    tuple of int, shape (num_stages,)
        Each at least 1 (in a list the first and the last may be 0), together `num_layers`.

    Raises
    ------
    ScenarioError
        More stages than layers, a list for another number of stages or layers, or one that leaves a stage
        without a layer that has neither embedding nor head.
    """
    if num_stages > num_layers and split.kind != "list":
        raise ScenarioError(
            f"{num_stages} stages need at least {num_stages} layers, the model has {num_layers}",
            key="parallel",
        )
    if split.kind != "list":
        layers, extra = divmod(num_layers, num_stages)
        return tuple(layers + (stage < extra) for stage in range(num_stages))
    per_stage = split.per_stage or ()
    if len(per_stage) != num_stages:
        raise ScenarioError(
            f"the list has {len(per_stage)} entries, one a stage is needed: {num_stages}", key="layers"
        )
    if sum(per_stage) != num_layers:
        raise ScenarioError(
            f"the stages have {sum(per_stage)} layers together, the model has {num_layers}", key="layers"
        )
    if 0 in per_stage[1:-1]:
        raise ScenarioError(f"stage {per_stage.index(0, 1)} is empty", key="layers")
    return per_stage


def uneven_words(scenario: ResolvedScenario, num_stages: int) -> str | None:
    """Warn of an even split of a model's layers that leaves a remainder on the stages that run."""
    model = scenario.model
    if model is None or scenario.layers.kind != "even" or not model.num_hidden_layers % num_stages:
        return None
    return (
        f"{model.num_hidden_layers} layers on {num_stages} stages leave a remainder of "
        f"{model.num_hidden_layers % num_stages}: as many of the first stages have one layer more "
        "(Megatron-LM refuses this split)"
    )
