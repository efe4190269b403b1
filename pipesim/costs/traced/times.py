"""How long traced kernels take on one device: each on its own, as PyTorch runs without a compiler.

A kernel takes the longer of its FLOPs at the rate that products reach and its bytes at the rate that
memory-bound kernels reach, and a launch on top. Rates are those of the scenario's efficiency, which was
fitted to transformers; there is no second set of them. Sizes that are no multiple of 64 are not slowed down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipesim.costs.stages.rates import memory_bytes_per_s, reference_flops
from pipesim.costs.traced.layer_trace import Kind, LayerTrace, OpCost
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.resolved import Efficiency, ResolvedScenario

KERNELS_OF_A_LAYER = 10
"""Forward kernels of pipesim's own GPT layer when traced, over which its stated overhead is spread."""

_PARTS: Mapping[Kind, str] = {"convolution": "gemm"}


@dataclass(frozen=True, slots=True)
class KernelRates:
    """What one device sustains.

    Parameters
    ----------
    flops_per_s : Mapping
        By kind of product, and whether its values are of 32 bits.
    memory_bytes_per_s : float
        Of memory-bound kernels.
    launch_s : float
        Of any kernel.
    """

    flops_per_s: Mapping[tuple[Kind, bool], float]
    memory_bytes_per_s: float
    launch_s: float

    def kernels_s(self, ops: Iterable[OpCost]) -> dict[str, float]:
        """Seconds of kernels one after the other, by part."""
        parts: dict[str, float] = defaultdict(float)
        for op in ops:
            compute_s = op.flops / self.flops_per_s[op.kind, op.wide] if op.flops else 0.0
            parts[_PARTS.get(op.kind, op.kind)] += max(compute_s, op.nbytes / self.memory_bytes_per_s)
            parts["overhead"] += self.launch_s
        return dict(parts)


def kernel_rates(scenario: ResolvedScenario, cluster: Cluster, efficiency: Efficiency) -> KernelRates:
    """Collect the rates of a scenario's accelerator.

    32-bit products run as PyTorch's defaults have them: convolutions in tf32 where there is that, all else in
    fp32. An accelerator without such a rate gets that of its 16-bit units.

    Raises
    ------
    ScenarioError
        If the accelerator does not compute in the scenario's precision.
    """
    accelerator, compute = cluster.accelerator, scenario.precision.compute
    peaks = accelerator.peak_flops
    # Convolution and attention stay in 16 bits when products with weights compute in fp8.
    wide = "fp16" if compute == "fp16" else "bf16"
    half = reference_flops(accelerator, efficiency, wide, file=scenario.file)
    products = reference_flops(accelerator, efficiency, compute, file=scenario.file)
    single = peaks.get("fp32", half)
    return KernelRates(
        flops_per_s={
            ("gemm", False): products * efficiency.gemm_in(compute),
            ("gemm", True): single * efficiency.gemm,
            ("convolution", False): half * efficiency.gemm,
            ("convolution", True): peaks.get("tf32", single) * efficiency.gemm,
            ("attention", False): half * efficiency.attention,
            ("attention", True): single * efficiency.attention,
        },
        memory_bytes_per_s=memory_bytes_per_s(accelerator, efficiency),
        launch_s=efficiency.layer_overhead_s / KERNELS_OF_A_LAYER,
    )


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of a layer, or of the loss, for one microbatch: forward and backward by part, and of W."""

    forward_parts_s: dict[str, float]
    backward_parts_s: dict[str, float]
    weight_gradient_s: float

    @property
    def forward_s(self) -> float:
        """All of the forward."""
        return sum(self.forward_parts_s.values())

    @property
    def backward_s(self) -> float:
        """All of the backward."""
        return sum(self.backward_parts_s.values())


def layer_times(
    layer: LayerTrace, rates: KernelRates, *, recompute: bool, gradient_bytes: float
) -> LayerTimes:
    """Time one layer.

    Parameters
    ----------
    layer : LayerTrace
        What was traced.
    rates : KernelRates
        Of the device.
    recompute : bool
        Whether the backward runs the forward again.
    gradient_bytes : float
        Of one parameter in the gradients to which every microbatch adds its own.
    """
    forward, backward = rates.kernels_s(layer.forward.ops), rates.kernels_s(layer.backward.ops)
    whole_s, input_s = (
        sum(rates.kernels_s(each.ops).values()) for each in (layer.whole_backward, layer.input_gradient)
    )
    # Read the sum and this microbatch's 16-bit gradient, write the sum.
    adding_s = sum(layer.parameters) * (2 * gradient_bytes + 2) / rates.memory_bytes_per_s
    if adding_s:
        backward["memory_bound"] = backward.get("memory_bound", 0.0) + adding_s
    # A first layer has nothing before it to give a gradient to, so its whole may be longer than its backward.
    weight_gradient_s = min(sum(backward.values()), max(0.0, whole_s - input_s) + adding_s)
    if recompute:
        # The host runs ahead during a backward: recomputing pays no launches, as with transformers.
        backward["recompute"] = sum(forward.values()) - forward.get("overhead", 0.0)
    return LayerTimes(forward, backward, weight_gradient_s)
