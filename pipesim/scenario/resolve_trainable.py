"""What of a model is trained: from keys to modules that are frozen or have adapters."""

from __future__ import annotations

from typing import get_args

from pipesim.errors import ScenarioError
from pipesim.scenario.notes import Notes
from pipesim.scenario.resolved import TrainableModule, Trained, Transformer
from pipesim.scenario.schema import TrainableKeys

_MODULES: tuple[TrainableModule, ...] = get_args(TrainableModule)
_ADAPTED: tuple[TrainableModule, ...] = ("attention", "mlp")


def resolve_trainable(keys: TrainableKeys | None, model: Transformer | None, notes: Notes) -> Trained:
    """Find what is frozen and what has adapters.

    Raises
    ------
    ScenarioError
        Without a transformer, for experts that it has not, or where nothing is left to train.
    """
    if keys is None:
        return Trained()
    if model is None:
        raise ScenarioError("has an effect on transformers only; remove it", key="trainable")
    if keys.lora_rank is None:
        if keys.lora_modules is not None:
            raise ScenarioError("has an effect only with lora_rank", key="trainable.lora_modules")
        return _frozen(keys.frozen or (), model)
    if keys.frozen is not None:
        raise ScenarioError("with lora_rank all weights are frozen; remove it", key="trainable.frozen")
    adapted = keys.lora_modules or _ADAPTED
    if keys.lora_modules is None:
        notes.default("trainable.lora_modules", ", ".join(_ADAPTED))
    _check_experts(adapted, model, "trainable.lora_modules")
    return Trained(frozenset(_MODULES), frozenset(adapted), keys.lora_rank)


def _frozen(modules: tuple[TrainableModule, ...], model: Transformer) -> Trained:
    _check_experts(modules, model, "trainable.frozen")
    if model.tie_word_embeddings and ("embedding" in modules) != ("head" in modules):
        raise ScenarioError(
            "embedding and head are one matrix here; freeze both or none", key="trainable.frozen"
        )
    present = {module for module in _MODULES if module != "experts" or model.experts is not None}
    if present <= set(modules):
        raise ScenarioError("leaves nothing to train", key="trainable.frozen")
    return Trained(frozenset(modules))


def _check_experts(modules: tuple[TrainableModule, ...], model: Transformer, key: str) -> None:
    if "experts" in modules and model.experts is None:
        raise ScenarioError("experts: the model has no experts", key=key)
