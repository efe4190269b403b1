"""What NeMo's and Megatron-Bridge's settings say of formats, the optimizer, recomputation and kernels."""

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
    BYTES,
    STATES,
    read_recipe,
    read_state,
)
from pipesim.scenario.settings import Settings

_SECTIONS = {
    "use_torch_fsdp2": ("dist",),
    "use_megatron_fsdp": ("ddp", "dist"),
    "use_custom_fsdp": ("ddp",),
    "data_parallel_sharding_strategy": ("ddp",),
    "num_distributed_optimizer_instances": ("ddp", "dist"),
    "main_grads_dtype": ("optimizer", "model.optim"),
    "main_params_dtype": ("optimizer", "model.optim"),
    "exp_avg_dtype": ("optimizer", "model.optim"),
    "exp_avg_sq_dtype": ("optimizer", "model.optim"),
    "use_precision_aware_optimizer": ("optimizer", "model.optim"),
    "sgd_momentum": ("optimizer", "model.optim"),
    "optimizer": ("optimizer", "model.optim.name"),
    "optimizer_cpu_offload": ("optimizer", "model.optim"),
    "optimizer_offload_fraction": ("optimizer", "model.optim"),
    "fp8_recipe": ("mixed_precision", "model"),
}
"""Sections that hold an option, where that is not ``model``."""
_OLD_NAMES = {
    "recompute_method": ("model.activations_checkpoint_method",),
    "recompute_num_layers": ("model.activations_checkpoint_num_layers",),
    "enable_cuda_graph": ("model.overwritten_attributes.enable_cuda_graph",),
}
_NVFP4, _FP8 = ("nvfp4", "fp4"), ("fp8",)
_FSDP_1 = {"full": "zero3", "hybrid": "zero3", "grad": "zero2"}


def _named(option: str) -> tuple[str, ...]:
    own = tuple(f"{section}.{option}" for section in _SECTIONS.get(option, ("model",)))
    return own + _OLD_NAMES.get(option, ())


def read_memory(settings: Settings, facts: Facts) -> None:
    """Set formats, optimizer, recomputation and kernels.

    Raises
    ------
    ScenarioError
        Formats, strategies or kinds that NeMo does not know.
    """
    optimizer = (settings.text("model.optim.name", "optimizer.optimizer") or "").lower()
    sharded = settings.flag(
        "ddp.use_distributed_optimizer",
        "optimizer.use_distributed_optimizer",
        "model.optim.use_distributed_optimizer",
        default=optimizer.startswith(("distributed_", "mcore_distributed_")),
    )
    read_sharding(settings, facts, _named, sharded=sharded)
    _fsdp_of_nemo_1(settings, facts)
    facts.overlap_gradients = settings.flag(
        "ddp.overlap_grad_reduce",
        "comm_overlap.overlap_grad_reduce",
        "model.optim.overlap_grad_sync",
        "model.optim.overlap_grad_reduce",
    )
    if facts.overlap_gradients:
        facts.inferred["parallel.overlap_gradients"] = "true (gradients are reduced beside the backward)"
    _compute(settings, facts)
    read_state(settings, facts, _named, _kind(optimizer))
    if not settings.flag("model.megatron_amp_O2", default=True):
        facts.precision |= {"activation_format": "32-bit", "weight_bytes": 4, "optimizer_bytes": 8}
        facts.inferred["precision"] = "weights and all that is kept in 32 bits (model.megatron_amp_O2 is off)"
    _reduced(settings, facts)
    key = "model.activations_checkpoint_granularity"
    kind = settings.text(key, "model.recompute_granularity")
    if kind not in (None, "full", "selective"):
        raise settings.refuse(
            key, f"found {kind!r}; allowed: full, selective; --ignore {key} reads on without it"
        )
    read_recomputation(settings, facts, _named, kind)
    read_dispatch(settings, facts, _named)
    read_context(settings, facts, _named)
    read_offload(settings, facts, _named)
    read_recipe(settings, facts, _named)
    read_graphs(settings, facts, _named)
    read_kernels(settings, facts, _named)


def _kind(name: str) -> str:
    """Find the optimizer in names such as ``mcore_distributed_optim`` or ``fused_adam``."""
    known = next((kind for kind in STATES if name.endswith(kind)), None)
    return known or ("adam" if name == "" or name.endswith("optim") else name)


def _fsdp_of_nemo_1(settings: Settings, facts: Facts) -> None:
    key, strategy = settings.raw("model.fsdp_sharding_strategy")
    if not settings.flag("model.fsdp"):
        return
    if strategy not in (None, *_FSDP_1):
        raise settings.refuse(
            key,
            f"found {str(strategy)[:40]!r}; allowed: {', '.join(_FSDP_1)}; --ignore {key} takes full",
        )
    facts.optimizer = _FSDP_1[strategy or "full"]
    facts.inferred["optimizer"] = f"{facts.optimizer} (model.fsdp, {strategy or 'full'})"
    if strategy == "hybrid":
        facts.not_used[key] = "hybrid: within how many replicas is not stated; parallel.data_shard states it"


def _compute(settings: Settings, facts: Facts) -> None:
    stated = str(settings.raw("trainer.precision", "mixed_precision", "mixed_precision.recipe")[1] or "")
    precision = stated.lower().replace("-", "_")
    fp4 = settings.raw("mixed_precision.fp4", "model.fp4")[1]
    fp8 = settings.raw("mixed_precision.fp8", "model.fp8")[1]
    if fp4 or any(word in precision for word in _NVFP4):
        facts.precision["compute"] = "nvfp4"
    elif "mxfp8" in precision:
        facts.precision["compute"] = "mxfp8"
    elif fp8 or "fp8" in precision:
        facts.precision["compute"] = "fp8"
    elif "bf16" in precision:
        facts.precision["compute"] = "bf16"
    elif precision.startswith(("16", "fp16")):
        facts.precision["compute"] = "fp16"
    elif precision:
        facts.not_used["precision"] = f"{stated}: not modelled, bf16 is taken"


def _reduced(settings: Settings, facts: Facts) -> None:
    """Set the format in which gradients are reduced."""
    key, kind = settings.raw("model.optim.grad_sync_dtype")
    if kind is not None and str(kind) not in BYTES:
        raise settings.refuse(
            key, f"found {str(kind)[:40]!r}; allowed: {', '.join(BYTES)}; --ignore {key} reads on without it"
        )
    in_fp32 = "mixed_precision.grad_reduce_in_fp32"
    flag = in_fp32 if in_fp32 in settings else "ddp.grad_reduce_in_fp32"
    settings.skip("ddp.grad_reduce_in_fp32")
    if (kind is not None and BYTES[str(kind)] == 2) or not settings.flag(flag, default=True):
        facts.precision["gradient_bytes"] = 2
        facts.inferred["precision.gradient_bytes"] = (
            f"2 ({key} {kind})" if kind is not None else f"2 ({flag} is off)"
        )
