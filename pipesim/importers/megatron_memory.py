"""What Megatron-LM's arguments say of formats, the optimizer, recomputation and kernels."""

from __future__ import annotations

from pipesim.importers.facts import Facts
from pipesim.importers.megatron_core import (
    read_context,
    read_dispatch,
    read_graphs,
    read_kernels,
    read_offload,
    read_recomputation,
    read_sharding,
)
from pipesim.importers.megatron_formats import (
    read_recipe,
    read_state,
)
from pipesim.scenario.settings import Settings

_OLD_NAMES = {
    "recompute_method": ("activations-checkpoint-method",),
    "recompute_num_layers": ("activations-checkpoint-num-layers",),
}


def _named(option: str) -> tuple[str, ...]:
    return (option.replace("_", "-"), *_OLD_NAMES.get(option, ()))


def read_memory(settings: Settings, facts: Facts) -> None:
    """Set formats, optimizer, recomputation and kernels.

    Raises
    ------
    ScenarioError
        Formats, strategies or kinds that Megatron-LM does not know, or FSDP of torch with a pipeline.
    """
    facts.overlap_gradients = settings.flag("overlap-grad-reduce")
    if facts.overlap_gradients:
        facts.inferred["parallel.overlap_gradients"] = "true (--overlap-grad-reduce)"
    read_sharding(settings, facts, _named, sharded=settings.flag("use-distributed-optimizer"))
    _formats(settings, facts)
    read_recomputation(settings, facts, _named, _granularity(settings))
    read_dispatch(settings, facts, _named)
    read_context(settings, facts, _named)
    read_offload(settings, facts, _named)
    read_recipe(settings, facts, _named)
    read_graphs(settings, facts, _named)
    read_kernels(settings, facts, _named, flash=settings.flag("use-flash-attn"))


def _formats(settings: Settings, facts: Facts) -> None:
    """Set what products compute in and what each parameter takes; 2, 4 and 12 bytes are the usual."""
    in_bf16, in_fp16 = settings.flag("bf16"), settings.flag("fp16")
    if settings.text("fp4-format", "fp4") is not None:
        facts.precision["compute"] = "nvfp4"
    elif settings.text("fp8-format", "fp8") is not None:
        facts.precision["compute"] = "fp8"
    elif in_bf16 or in_fp16:
        facts.precision["compute"] = "bf16" if in_bf16 else "fp16"
    else:
        facts.placeholders["precision"] = "neither --bf16 nor --fp16: fp32 is not modelled, bf16 is taken"
    read_state(settings, facts, _named, (settings.text("optimizer") or "adam").lower())
    if settings.flag("grad-reduce-in-bf16"):
        facts.precision["gradient_bytes"] = 2
        facts.inferred["precision.gradient_bytes"] = "2 (--grad-reduce-in-bf16)"


def _granularity(settings: Settings) -> str | None:
    kind = settings.text("recompute-granularity")
    if settings.flag("recompute-activations"):
        kind = kind or "selective"
    method = settings.text(*_named("recompute_method"))
    if settings.flag("checkpoint-activations") or (kind is None and method is not None):
        kind = "full"
    if kind not in (None, "full", "selective", "none"):
        raise settings.refuse(
            "recompute-granularity",
            f"found {kind!r}; allowed: full, selective; --ignore recompute-granularity reads on without it",
        )
    return kind
