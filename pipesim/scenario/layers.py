"""How layers fall to stages: contiguous, every stage at least one layer, no layer lost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipesim.errors import ScenarioError
from pipesim.scenario.resolved import LayerSplit


def split_layers(
    num_layers: int, num_stages: int, split: LayerSplit, weights: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Count the layers of each stage.

    Parameters
    ----------
    num_layers : int
        Layers of the model.
    num_stages : int
        S = p * v; may differ from the scenario's own when several v are compared.
    split : LayerSplit
        As the scenario states it. ``even`` gives the remainder to the first stages, one layer each, so that
        the last stage, which has the output head, is never a larger one.
    weights : sequence of float, shape (num_layers,), optional
        Cost of each layer, embedding and head counted with the first and last; needed for ``balanced``.

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
    if split.kind == "even":
        layers, extra = divmod(num_layers, num_stages)
        return tuple(layers + (stage < extra) for stage in range(num_stages))
    if split.kind == "balanced":
        if weights is None or len(weights) != num_layers:
            raise ValueError("a balanced split needs one weight a layer")
        return balance(weights, num_stages)
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


def balance(weights: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Cut items into contiguous groups so that the heaviest group is as light as possible.

    Among such cuts the one with the least sum of squares is taken (the most even), then the one whose later
    groups are the smaller. Weights count to 26 binary digits of their sum, within which all sums and squares
    are exact, so that no rounding decides between equals. Dynamic programme over prefixes,
    O(num_stages * items ** 2).

    Parameters
    ----------
    weights : sequence of float, shape (items,)
        Cost of each item, none negative.
    num_stages : int
        Groups, at most as many as items.

    Returns
    -------
    tuple of int, shape (num_stages,)
        Items in each group, at least one.

    Raises
    ------
    ValueError
        More groups than items, or a negative or non-finite weight.
    """
    num_items = len(weights)
    if not 1 <= num_stages <= num_items:
        raise ValueError(f"{num_items} items cannot fill {num_stages} groups")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError("weights must be finite and not negative")
    import numpy as np

    relative = np.asarray(weights, dtype=float) / (sum(weights) or 1)
    ends = np.concatenate([[0.0], np.cumsum(np.rint(relative * 2**26))])
    # load[i, j]: items i..j-1 as one group; an empty group is not allowed.
    load = np.where(
        np.arange(num_items + 1) > np.arange(num_items + 1)[:, None], ends - ends[:, None], np.inf
    )
    heaviest = load[0]
    for _ in range(num_stages - 1):
        heaviest = np.maximum(heaviest[:, None], load).min(axis=0)
    square = np.where(load <= heaviest[num_items], load, np.inf) ** 2
    total = square[0]
    cuts = []
    for _ in range(num_stages - 1):
        candidates = total[:, None] + square
        # The last of equal minima: the group that ends here is then the smaller one.
        cuts.append(num_items - candidates[::-1].argmin(axis=0))
        total = candidates.min(axis=0)
    sizes = []
    end = num_items
    for cut in reversed(cuts):
        start = int(cut[end])
        sizes.append(end - start)
        end = start
    return (end, *reversed(sizes))
