"""Numbers out of a Hugging Face ``config.json``, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.counts import LARGEST_COUNT, as_count, shown

_NAMES = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "n_embed"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "n_ctx", "seq_length"),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts", "num_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"),
    "num_shared_experts": ("n_shared_experts", "num_shared_experts"),
}


def count(
    config: Mapping[str, Any],
    key: str,
    file: str,
    *,
    required: bool = False,
    minimum: int = 1,
    maximum: int = LARGEST_COUNT,
) -> int | None:
    """Read a whole number under the first of its names that has a value.

    Parameters
    ----------
    config : Mapping
        The configuration.
    key : str
        The usual name; other families' names for it are tried as well.
    file : str
        For messages.
    required : bool
        Whether it must be there.
    minimum, maximum : int
        The smallest and the largest legal value.

    Returns
    -------
    int or None
        None where no name is there or the value is null.

    Raises
    ------
    ScenarioError
        Missing though required, or no such number.
    """
    names = _NAMES.get(key, (key,))
    name = next((name for name in names if config.get(name) is not None), None)
    if name is None:
        if required:
            also = f" (nor is there {' or '.join(names[1:])})" if names[1:] else ""
            raise ScenarioError(f"missing{also}", file=file, key=names[0])
        return None
    return as_count(config[name], file=file, key=name, minimum=minimum, maximum=maximum)


def flag(config: Mapping[str, Any], key: str, default: bool, file: str) -> bool:
    """Read true or false; raise ScenarioError for anything else."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ScenarioError(f"found {shown(value)}; true or false is needed", file=file, key=key)
    return value
