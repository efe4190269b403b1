"""Where the numbers of a transformer's cost table came from, in words."""

from __future__ import annotations

from pipesim.costs.stages.stage_provenance import runs
from pipesim.costs.transformer.parameters import experts_in_stages
from pipesim.scenario.resolved import Transformer


def transformer_provenance(model: Transformer, counts: tuple[int, ...]) -> dict[str, str]:
    """Name the model and how its backward is split; `counts` are the layers of each stage."""
    words = {
        "model": f"{model.name} ({model.source})",
        "input and weight gradient": "W: products for the weights, half of the overhead; I: the rest",
    }
    if model.experts is not None:
        words["layers with experts per stage"] = runs(tuple(experts_in_stages(model, counts)))
    return words
