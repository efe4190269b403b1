"""Low-rank adapters as frameworks state them: a rank, and the products that have one."""

from __future__ import annotations

from pipesim.importers.facts import Facts
from pipesim.importers.model_names import fields_of
from pipesim.scenario.settings import Settings

_ATTENTION = (
    *("linear_qkv", "linear_proj", "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj"),
    *("linear_kv_down_proj", "linear_kv_up_proj", "linear_q", "linear_k", "linear_v", "attention_qkv"),
    *("attention_dense", "attention", "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "query_key_value"),
    *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "wq", "wk", "wv", "wo", "c_attn"),
)
_MLP = (
    *("linear_fc1", "linear_fc2", "linear_fc1_up", "linear_fc1_gate", "mlp_fc1", "mlp_fc2", "mlp"),
    *("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "w1", "w2", "w3"),
    *("dense_h_to_4h", "dense_4h_to_h", "c_fc"),
)
_ALL = ("all", "all-linear", "all_linear")
_FULL = (None, "", "none", "full")
_WHOLE = (
    {"linear_qkv", "linear_proj"},
    {"attention_qkv", "attention_dense"},
    {"q_proj", "k_proj", "v_proj", "o_proj"},
    {"qkv_proj", "o_proj"},
    {"wq", "wk", "wv", "wo"},
    {"attention"},
)
"""Names that together are all of the attention, by the framework."""


def read_adapters(
    settings: Settings,
    facts: Facts,
    *,
    kind: tuple[str, ...],
    rank: tuple[str, ...],
    targets: tuple[str, ...],
    usual_rank: int,
    usual_targets: tuple[str, ...],
) -> None:
    """Set adapters, where the file asks for any.

    Parameters
    ----------
    settings, facts
        The file's; the facts have the model.
    kind, rank, targets : tuple of str
        Paths where the kind of training, the rank and the adapted products may stand.
    usual_rank, usual_targets
        The framework's, where the file states none.

    Raises
    ------
    ScenarioError
        A kind of training that is neither of all weights nor with low-rank adapters, or products that are not
        known.
    """
    key, stated = settings.raw(*kind)
    found = stated.lower() if isinstance(stated, str) else stated
    number = settings.count(*rank, sets="trainable.lora_rank")
    wanted_key, wanted = settings.words(*targets)
    if found in _FULL and (number is None or found in ("full", "none")):
        if wanted:
            facts.not_used[wanted_key] = "has no effect without adapters"
        return
    if found not in (*_FULL, "lora"):
        raise settings.refuse(
            key,
            f"found {str(stated)[:40]!r}: of frozen weights, low-rank adapters are modelled; --ignore {key} "
            "reads it as training of all weights",
        )
    names = wanted or list(usual_targets)
    facts.trainable = {
        "lora_rank": number or usual_rank,
        "lora_modules": _modules(settings, facts, wanted_key, names),
    }
    how = "stated" if number else "by default"
    facts.inferred["trainable"] = f"adapters of rank {number or usual_rank} ({how}) on {', '.join(names)}"


def _modules(settings: Settings, facts: Facts, key: str, names: list[str]) -> list[str]:
    plain = [name.rpartition(".")[2].removeprefix("*") for name in names]
    unknown = [name for name in plain if name not in (*_ALL, *_ATTENTION, *_MLP)]
    if unknown:
        raise settings.refuse(
            key,
            f"found {unknown[0][:40]!r}; known: all-linear, {', '.join(_ATTENTION[:2])}, "
            f"{', '.join(_MLP[:2])}, ...; --ignore {key} takes the usual ones",
        )
    everything = any(name in _ALL for name in plain)
    model = fields_of(facts.model)
    of_attention = everything or any(name in _ATTENTION for name in plain)
    of_mlp = everything or any(name in _MLP for name in plain)
    if not everything and of_attention and not _is_whole(plain):
        facts.not_used[key] = f"{' '.join(plain)}: adapters of all of the attention are counted"
    found = {"attention": of_attention, "mlp": of_mlp, "experts": of_mlp and "num_experts" in model}
    return [name for name, there in found.items() if there]


def _is_whole(names: list[str]) -> bool:
    return any(group <= set(names) for group in _WHOLE)
