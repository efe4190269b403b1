"""Kinds of layers that a model may have side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from pipesim.costs.transformer.layer import Setting


class LayerKind(NamedTuple):
    """Whether a layer has experts, and whether it keeps all that recomputation would drop."""

    with_experts: bool
    kept: bool = False

    def setting(self, setting: Setting) -> Setting:
        """Give what the layer's time and memory depend on."""
        return replace(setting, recompute="none") if self.kept else setting


LAYER_KINDS = tuple(LayerKind(experts, kept) for kept in (False, True) for experts in (False, True))
