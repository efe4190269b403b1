"""What is fitted on which published sets: presets, their parameters, and where these are expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipesim.errors import ScenarioError
from pipesim.evidence.published import SETS

BOUNDS: Mapping[str, tuple[float, float, float]] = {
    "gemm": (0.2, 0.7, 0.95),
    "gemm_fp8": (0.2, 0.65, 0.95),
    "attention": (0.1, 0.45, 0.95),
    "layer_overhead_s": (0.0, 0.6e-3, 5e-3),
    "unaligned_gemm": (0.3, 0.75, 1.0),
    "tensor_collective_factor": (0.0, 1.0, 5.0),
    "intra_node_bandwidth_factor": (0.1, 0.6, 1.0),
    "pass_time_factor": (0.9, 1.05, 1.3),
    "gemm_nvfp4": (0.2, 0.5, 0.95),
    "sort_passes": (0.0, 5.0, 40.0),
    "memory": (0.1, 0.7, 0.95),
    "cards.gb200,gb300": (0.8, 1.05, 1.6),
    "cards.b300-sxm,gb300": (0.8, 1.2, 1.6),
}
"""Least, where a fit begins, greatest: of fields of `Efficiency`, and of the factor on pass times."""

ANCHORS: Mapping[str, tuple[float, float]] = {
    "gemm": (0.65, 0.1),
    "gemm_fp8": (0.65, 0.1),
    "gemm_nvfp4": (0.5, 0.1),
    "attention": (0.5, 0.1),
    "layer_overhead_s": (0.3e-3, 0.2e-3),
    "tensor_collective_factor": (0.5, 0.25),
    "sort_passes": (4.0, 4.0),
    "memory": (0.7, 0.2),
    "cards.gb200,gb300": (2500 / 2250, 0.1),
    "cards.b300-sxm,gb300": (1.1, 0.15),
}
"""Where a parameter is expected before any row, and with what spread: shares of the peak as of the largest
products seen and of flash attention, cards by their peaks in bf16. It decides what the rows leave open."""
ROW_SCATTER = {False: 0.03, True: 0.1}
"""Of an anchored recipe's rows, without and with experts: what models differ by that have no parameter."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which sets a preset is fitted on, and which of its fields.

    With `sets_alike` sets weigh alike however many rows they have, otherwise rows do. A recipe of many
    parameters is `anchored`: each begins at its anchor and is pulled there by its spread. One that is
    `pooled` takes the rows of several other presets. Sets that are only `compared` tell how well it tells
    schedules apart.
    """

    preset: str
    sets: tuple[str, ...]
    parameters: tuple[str, ...]
    sets_alike: bool = False
    anchored: bool = False
    pooled: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()

    @property
    def presets(self) -> tuple[str, ...]:
        """Presets whose rows it is fitted on."""
        return self.pooled or (self.preset,)


_SCHEDULES_ON_A100 = ("zero-bubble-hardware", "zero-bubble-few")

RECIPES: Mapping[str, Recipe] = {
    recipe.preset: recipe
    for recipe in (
        Recipe(
            "a100-megatron-2022", ("korthikanti",), ("gemm", "layer_overhead_s"), compared=_SCHEDULES_ON_A100
        ),
        Recipe("a100-megatron-2021", ("sc21",), ("gemm", "layer_overhead_s")),
        Recipe("a100-megatron-deepspeed-vtrain", ("vtrain",), ("gemm", "layer_overhead_s")),
        Recipe(
            "a100-megatron-deepspeed-bloom",
            ("bloom", "bloom-batches"),
            ("gemm", "layer_overhead_s", "tensor_collective_factor", "unaligned_gemm"),
        ),
        Recipe(
            "a100-megatron",
            ("korthikanti", "sc21", "vtrain"),
            ("gemm", "layer_overhead_s"),
            sets_alike=True,
            pooled=("a100-megatron-2022", "a100-megatron-2021", "a100-megatron-deepspeed-vtrain"),
            compared=_SCHEDULES_ON_A100,
        ),
        Recipe("a100-megatron-2024", ("vocabulary",), ("gemm", "attention", "layer_overhead_s")),
        Recipe(
            "h100-nemo",
            ("nvidia", "bridge", "mlperf"),
            (
                "gemm",
                "gemm_fp8",
                "attention",
                "layer_overhead_s",
                "tensor_collective_factor",
                "sort_passes",
            ),
            anchored=True,
        ),
        Recipe("h100-nemo-2024", ("bridge",), ("gemm_fp8", "layer_overhead_s"), anchored=True),
        Recipe(
            "b200-nemo",
            ("bridge", "nvidia"),
            (
                "gemm",
                "gemm_fp8",
                "gemm_nvfp4",
                "layer_overhead_s",
                "tensor_collective_factor",
                "sort_passes",
                "cards.gb200,gb300",
                "cards.b300-sxm,gb300",
            ),
            anchored=True,
        ),
        Recipe(
            "h100-torchtitan",
            ("torchtitan",),
            ("gemm", "gemm_fp8", "attention", "memory", "tensor_collective_factor"),
            anchored=True,
        ),
        Recipe("h100-torchtitan-eager", ("torchtitan",), ("memory",), anchored=True),
        Recipe("b200-nemo-graphs", ("bridge",), ("sort_passes",), anchored=True),
        Recipe("zero-bubble-pass-times", ("zero-bubble",), ("pass_time_factor",)),
        Recipe("b200-megatron", ("simumax",), ("gemm", "attention", "intra_node_bandwidth_factor")),
    )
}


def recipe_of(name: str) -> Recipe:
    """Look a recipe up by its preset, or by a set that it is fitted on alone.

    Raises
    ------
    ScenarioError
        If there is none.
    """
    plain = name.strip().lower().replace("_", "-")
    if plain in RECIPES:
        return RECIPES[plain]
    for recipe in RECIPES.values():
        if plain in SETS and SETS[plain].fitted == (recipe.preset,):
            return recipe
    raise ScenarioError(
        f"nothing is fitted to {name!r}; presets with a fit: {', '.join(RECIPES)}; "
        f"sets: {', '.join(name for name, one in SETS.items() if one.fitted)}"
    )
