"""Weights, gradients and optimizer state that one device holds, by what its replicas share out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipesim.scenario.resolved import OptimizerLevel, Parallel, Precision

_SHARED: dict[str, tuple[OptimizerLevel, ...]] = {
    "weights": ("zero3",),
    "gradients": ("zero2", "zero3"),
    "optimizer": ("sharded", "zero2", "zero3", "fsdp"),
}


@dataclass(frozen=True, slots=True)
class StateBytes:
    """How many bytes parameters take; they are given as those of one device, experts' apart from the rest."""

    level: OptimizerLevel
    parallel: Parallel
    precision: Precision

    def weights(self, dense: Any, experts: Any) -> Any:
        """Bytes of weights as the forward reads them."""
        return self.share("weights", dense, experts) * self.precision.weight_bytes

    def gradients(self, dense: Any, experts: Any) -> Any:
        """Bytes of gradients."""
        return self.share("gradients", dense, experts) * self.precision.gradient_bytes

    def optimizer(self, dense: Any, experts: Any) -> Any:
        """Bytes of master weights and moments."""
        return self.share("optimizer", dense, experts) * self.precision.optimizer_bytes

    def updated(self, dense: Any, experts: Any) -> Any:
        """Count the parameters that one device's optimizer updates."""
        return self.share("optimizer", dense, experts)

    def in_all(self, dense: Any, experts: Any) -> Any:
        """Bytes of all three."""
        return sum(of(dense, experts) for of in (self.weights, self.gradients, self.optimizer))

    def share(self, what: str, dense: Any, experts: Any) -> Any:
        """Count the parameters of which a device keeps something: all, or its share of the replicas'."""
        dropped = what == "weights" and self.level == "fsdp" and self.parallel.reshard_after_forward
        if self.level not in _SHARED[what] and not dropped:
            return dense + experts
        parallel = self.parallel
        sharing = parallel.num_expert_sharing if parallel.experts_apart else parallel.num_sharing
        return dense / parallel.num_sharing + experts / sharing
