"""Formats of weights, gradients, optimizer states and products, as Megatron-core names them."""

from __future__ import annotations

from collections.abc import Callable

from pipesim.importers.facts import Facts
from pipesim.scenario.settings import Settings

Names = Callable[[str], tuple[str, ...]]
"""From an option as Megatron-core spells it (``recompute_modules``) to where a file may have it."""
BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp8": 1, "uint8": 1}
"""Bytes of a value by the name that frameworks give its format."""
STATES = {"adam": 2, "adamw": 2, "sgd": 1, "muon": 1, "dist_muon": 1, "lion": 1, "adagrad": 1}
"""Values that an optimizer keeps for each parameter beside the parameter itself."""


def bytes_of(settings: Settings, key: str, kind: str) -> int:
    """Give the bytes of a format.

    Raises
    ------
    ScenarioError
        A format that is not known.
    """
    if kind not in BYTES:
        raise settings.refuse(
            key, f"found {kind[:40]!r}; allowed: {', '.join(BYTES)}; --ignore {key} reads on without it"
        )
    return BYTES[kind]


def read_state(settings: Settings, facts: Facts, named: Names, kind: str) -> None:
    """Set what gradients, main parameters and the optimizer's state take: 4 and 12 bytes are the usual.

    Parameters
    ----------
    settings, facts, named
        As for `read_recomputation`.
    kind : str
        The optimizer's name, as `STATES` has it.

    Raises
    ------
    ScenarioError
        A format that is not known.
    """
    key, gradients = settings.raw(*named("main_grads_dtype"))
    if gradients is not None and bytes_of(settings, key, str(gradients)) == 2:
        facts.precision["gradient_bytes"] = 2
        facts.inferred["precision.gradient_bytes"] = f"2 ({key} {gradients})"
    aware = settings.flag(*named("use_precision_aware_optimizer"))
    parts = []
    for name in ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        key, stated = settings.raw(*named(name))
        parts.append(4 if stated is None else bytes_of(settings, key, str(stated)))
        if parts[-1] != 4 and not aware:
            facts.inferred[key] = f"{stated} (taken as stated; Megatron needs the precision-aware optimizer)"
    number = STATES.get(kind)
    if kind == "sgd" and str(settings.raw(*named("sgd_momentum"))[1]) in ("0", "0.0"):
        number = 0
    if number is None:
        facts.not_used[named("optimizer")[0]] = f"{kind}: not modelled, its state is counted as that of Adam"
        number = 2
    total = sum(parts[: 1 + number])
    if total != 12:
        facts.precision["optimizer_bytes"] = total
        facts.inferred["precision.optimizer_bytes"] = (
            f"{total} ({' + '.join(map(str, parts[: 1 + number]))}: main parameters and state of {kind})"
        )


def read_recipe(settings: Settings, facts: Facts, named: Names) -> None:
    """Set the formats that go with products in fp8 or fp4.

    Parameters
    ----------
    settings, facts, named
        As for `read_recomputation`; the facts have the format of products.
    """
    recipe = settings.raw(*named("fp8_recipe"))[1]
    if recipe == "mxfp8" and facts.precision.get("compute") == "fp8":
        facts.precision["compute"] = "mxfp8"
    if settings.flag(*named("activation_func_fp8_input_store")):
        facts.precision["activation_function_format"] = "fp8"
        facts.inferred["precision.activation_function_format"] = "fp8 (activation_func_fp8_input_store)"
