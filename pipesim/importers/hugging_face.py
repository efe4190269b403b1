"""A runnable scenario around a Hugging Face configuration, its guesses marked as such."""

from __future__ import annotations

from typing import Any

from pipesim.importers.facts import Facts
from pipesim.importers.request import Request
from pipesim.scenario.hf.config import read_hf_model

_MICROBATCHES_PER_RANK = 8


def read(request: Request) -> Facts:
    """Make up a cluster, a cut and a batch for a model whose cluster is not known yet, all placeholders.

    Raises
    ------
    ScenarioError
        As for `read_hf_model`.
    """
    read_model = read_hf_model(request.paths[0], ignore=request.ignore, stated=request.stated)
    request.ignore = ()
    model = read_model.fields
    facts = request.facts("Hugging Face", model["name"])
    facts.model, facts.not_used = model, dict(read_model.not_used)
    facts.tensor = next(size for size in (8, 4, 2, 1) if _divides(model, size))
    facts.pipeline = next(size for size in (8, 4, 2, 1) if size <= model["num_hidden_layers"])
    facts.data = 1
    facts.sequence_parallel = model["seq_length"] % facts.tensor == 0
    facts.global_size = _MICROBATCHES_PER_RANK * facts.pipeline
    facts.placeholders = {
        "model.seq_length": "the configuration states the largest one; at most 8192 of it is taken here, and "
        "no more than a window that all layers have",
        "cluster.num_nodes": "follows from parallel",
        "parallel": "tensor * pipeline * data must be the number of GPUs",
        "batch": "sequences of one optimizer step, and of one microbatch",
        "schedule": "`pipesim compare` shows what others would take",
    }
    return facts


def _divides(model: dict[str, Any], tensor: int) -> bool:
    heads = model["num_attention_heads"]
    key_value_heads = model.get("num_key_value_heads", heads)
    fits = key_value_heads % tensor == 0 or tensor % key_value_heads == 0
    keys = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")
    widths = [model[key] for key in keys if model.get(key)]
    return bool(fits and heads % tensor == 0 and all(width % tensor == 0 for width in widths))
