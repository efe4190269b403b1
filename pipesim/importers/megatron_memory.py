"""What Megatron-LM's arguments say of formats, the optimizer, recomputation and kernels."""

from __future__ import annotations

from pipesim.importers.facts import Facts
from pipesim.scenario.settings import Settings

BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp8": 1, "uint8": 1}
"""Bytes of a value by the name that frameworks give its format."""
STATES = {"adam": 2, "adamw": 2, "sgd": 1, "muon": 1, "dist_muon": 1, "lion": 1, "adagrad": 1}
"""Values that an optimizer keeps for each parameter beside the parameter itself."""
_SHARDED = {
    "no_shard": "plain",
    "optim": "sharded",
    "optim_grads": "zero2",
    "optim_grads_params": "zero3",
}
_KERNELS = {"flash": "flash", "fused": "flash", "auto": "flash", "unfused": "unfused", "local": "unfused"}


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
    facts.optimizer = _sharding(settings, facts)
    _formats(settings, facts)
    facts.recompute = _recompute(settings, facts)
    _kernels(settings, facts)


def _sharding(settings: Settings, facts: Facts) -> str:
    sharded = settings.flag("use-distributed-optimizer")
    fsdp = settings.flag("use-megatron-fsdp", "use-custom-fsdp")
    torch_fsdp = settings.flag("use-torch-fsdp2")
    strategy = settings.text("data-parallel-sharding-strategy") or "no_shard"
    if strategy not in _SHARDED:
        raise settings.refuse(
            "data-parallel-sharding-strategy",
            f"found {strategy!r}; allowed: {', '.join(_SHARDED)}; --ignore data-parallel-sharding-strategy "
            "reads on without it",
        )
    if torch_fsdp:
        for key, size in (("pipeline", facts.pipeline), ("expert", facts.expert)):
            if size > 1:
                raise settings.refuse(
                    "use-torch-fsdp2",
                    f"Megatron-LM refuses it with {key} parallelism (megatron/training/arguments.py); "
                    "--ignore use-torch-fsdp2 reads on without it",
                )
        facts.inferred["optimizer"] = "zero3 (--use-torch-fsdp2)"
        return "zero3"
    if fsdp:
        facts.inferred["optimizer"] = f"{_SHARDED[strategy]} (Megatron's FSDP with {strategy})"
        return _SHARDED[strategy]
    if strategy != "no_shard":
        facts.not_used["data-parallel-sharding-strategy"] = f"{strategy}: no effect without FSDP"
    return "sharded" if sharded else "plain"


def _formats(settings: Settings, facts: Facts) -> None:
    """Set what products compute in and what each parameter takes; 2, 4 and 12 bytes are the usual."""
    in_bf16, in_fp16 = settings.flag("bf16"), settings.flag("fp16")
    if settings.text("fp8-format", "fp8") is not None:
        facts.precision["compute"] = "fp8"
    elif in_bf16 or in_fp16:
        facts.precision["compute"] = "bf16" if in_bf16 else "fp16"
    else:
        facts.placeholders["precision"] = "neither --bf16 nor --fp16: fp32 is not modelled, bf16 is taken"
    gradients = settings.text("main-grads-dtype")
    reduced = settings.flag("grad-reduce-in-bf16")
    if reduced or (gradients is not None and _bytes(settings, "main-grads-dtype", gradients) == 2):
        facts.precision["gradient_bytes"] = 2
        key = "grad-reduce-in-bf16" if reduced else "main-grads-dtype"
        facts.inferred["precision.gradient_bytes"] = f"2 (--{key})"
    aware = settings.flag("use-precision-aware-optimizer")
    parts = {}
    for name in ("main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype"):
        kind = settings.text(name)
        parts[name] = 4 if kind is None else _bytes(settings, name, kind)
        if kind is not None and parts[name] != 4 and not aware:
            facts.inferred[name] = (
                f"{kind} (taken as stated; Megatron-LM needs the precision-aware optimizer)"
            )
    _optimizer_bytes(settings, facts, list(parts.values()))


def _optimizer_bytes(settings: Settings, facts: Facts, parts: list[int]) -> None:
    kind = (settings.text("optimizer") or "adam").lower()
    number = STATES.get(kind)
    if kind == "sgd" and settings.text("sgd-momentum") in ("0", "0.0"):
        number = 0
    if number is None:
        facts.not_used["optimizer"] = f"{kind}: not modelled, its state is counted as that of Adam"
        number = 2
    total = sum(parts[: 1 + number])
    if total != 12:
        facts.precision["optimizer_bytes"] = total
        facts.inferred["precision.optimizer_bytes"] = (
            f"{total} ({' + '.join(map(str, parts[: 1 + number]))}: main parameters and state of {kind})"
        )


def _bytes(settings: Settings, key: str, kind: str) -> int:
    if kind not in BYTES:
        raise settings.refuse(
            key, f"found {kind!r}; allowed: {', '.join(BYTES)}; --ignore {key} reads on without it"
        )
    return BYTES[kind]


def _recompute(settings: Settings, facts: Facts) -> str:
    kind = settings.text("recompute-granularity")
    method = settings.text("recompute-method", "activations-checkpoint-method")
    layers = settings.count("recompute-num-layers", "activations-checkpoint-num-layers", minimum=0)
    if settings.flag("recompute-activations"):
        kind = kind or "selective"
    if settings.flag("checkpoint-activations") or (kind is None and method is not None):
        kind = "full"
    if kind not in (None, "full", "selective", "none"):
        raise settings.refuse(
            "recompute-granularity",
            f"found {kind!r}; allowed: full, selective; --ignore recompute-granularity reads on without it",
        )
    if kind == "full" and method == "block" and layers is not None:
        facts.not_used["recompute-num-layers"] = f"{layers}: not modelled; every layer is recomputed"
    _, modules = settings.raw("recompute-modules")
    names = modules.split() if isinstance(modules, str) else modules or []
    if kind == "selective" and names and names != ["core_attn"]:
        facts.not_used["recompute-modules"] = (
            f"{' '.join(names)}: not modelled; only core attention is recomputed"
        )
    return kind or "none"


def _kernels(settings: Settings, facts: Facts) -> None:
    backend = settings.text("attention-backend")
    if settings.flag("use-flash-attn") and backend is None:
        backend = "flash"
    if backend is not None:
        if backend not in _KERNELS:
            raise settings.refuse(
                "attention-backend",
                f"found {backend!r}; allowed: {', '.join(_KERNELS)}; --ignore attention-backend reads on "
                "without it",
            )
        facts.efficiency["attention_kernel"] = _KERNELS[backend]
        facts.inferred["efficiency.attention_kernel"] = f"{_KERNELS[backend]} (--attention-backend {backend})"
    if settings.flag("cross-entropy-loss-fusion"):
        facts.efficiency["loss_kernel"] = "fused"
        facts.inferred["efficiency.loss_kernel"] = "fused (--cross-entropy-loss-fusion)"
