"""How long one transformer layer, the embedding and the head take on one device, for one microbatch.

A closed form with few parameters, each an effective number of one generation of training software on one kind
of device (`pipesim.scenario.resolved.Efficiency`); byte counts are fixed. Per layer, T tokens::

    gemm              2 T N K / (peak * gemm efficiency), longer where N or K is not a multiple of 64
    attention         flash: 2 b s^2 hq / t FLOPs (the causal half), backward 2.5 times
                      unfused: 4 b s^2 hq / t FLOPs and 13 bytes a score, backward twice the FLOPs, 20 bytes
    memory bound      22 T h bytes (/ t with sequence parallelism) + 4 T f / t (twice that when gated),
                      backward 1.5 times
    tensor collective two all-reduces of 2 T h bytes, as many in the backward; reduce-scatter with
                      all-gather moves as much
    overhead          a stated time, backward twice that

The backward of a matrix multiplication is two of its size. W runs those for the weights and half of the
overhead; I runs everything else, recomputation included, so I and W add up to B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipesim.costs.flops import head_flops, layer_attention_flops, layer_gemms
from pipesim.costs.network import Ring, all_reduce_s
from pipesim.scenario.resolved import Transformer

PARTS = (
    "gemm",
    "attention",
    "memory_bound",
    "tensor_collective",
    "overhead",
    "head",
    "recompute",
)
"""What forward and backward times consist of, in the order that pictures stack them."""

_ALIGNMENT = 64
_SCORE_BYTES_FORWARD, _SCORE_BYTES_BACKWARD = 13, 20
_FLASH_BACKWARD = 2.5
_MEMORY_BOUND_BACKWARD = 1.5
_HIDDEN_BYTES, _MLP_BYTES = 22, 4
_LOGIT_BYTES = 12
_LOOKUP_BYTES = 4


@dataclass(frozen=True, slots=True)
class Rates:
    """What one device sustains: peak rates times efficiencies."""

    layer_gemm_flops_per_s: float
    unaligned_gemm: float
    """Factor on the rate of a layer's product where a width is not a multiple of 64."""
    head_gemm_flops_per_s: float
    attention_flops_per_s: float
    memory_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Setting:
    """What the time of a layer depends on.

    `tensor_ring` is None without tensor parallelism; its base latency stands for all latency of a collective.
    """

    model: Transformer
    micro: int
    tensor: int
    sequence_parallel: bool
    recompute: Literal["none", "selective", "full"]
    attention_kernel: Literal["flash", "unfused"]
    layer_overhead_s: float
    tensor_collective_factor: float
    tensor_ring: Ring | None
    rates: Rates

    @property
    def num_tokens(self) -> int:
        """Tokens of one microbatch."""
        return self.micro * self.model.seq_length


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Seconds of one block (a layer, the embedding, the head), forward and backward by part.

    `weight_gradient_s` is the share of the backward that W runs when a schedule splits it.
    """

    forward_s: dict[str, float]
    backward_s: dict[str, float]
    weight_gradient_s: float

    @property
    def total_s(self) -> float:
        """Forward and backward together."""
        return sum(self.forward_s.values()) + sum(self.backward_s.values())


def layer_times(setting: Setting) -> BlockTimes:
    """Time one transformer layer."""
    gemm = _layer_gemm_s(setting)
    attention, attention_backward = _attention_s(setting)
    memory_bound = _memory_bound_s(setting)
    collective = _tensor_collective_s(setting)
    overhead = setting.layer_overhead_s
    forward = {
        "gemm": gemm,
        "attention": attention,
        "memory_bound": memory_bound,
        "tensor_collective": collective,
        "overhead": overhead,
    }
    again = {"none": 0.0, "selective": attention, "full": sum(forward.values())}[setting.recompute]
    backward = {
        "gemm": 2 * gemm,
        "attention": attention_backward,
        "memory_bound": _MEMORY_BOUND_BACKWARD * memory_bound,
        "tensor_collective": collective,
        "overhead": 2 * overhead,
        "recompute": again,
    }
    return BlockTimes(forward, backward, weight_gradient_s=gemm + overhead)


def head_times(setting: Setting) -> BlockTimes:
    """Time the output matrix and the loss on the last stage."""
    rates = setting.rates
    gemm = head_flops(setting.model, setting.num_tokens) / setting.tensor / rates.head_gemm_flops_per_s
    logits = setting.num_tokens * setting.model.vocab_size / setting.tensor
    loss = _LOGIT_BYTES * logits / rates.memory_bytes_per_s
    return BlockTimes({"head": gemm + loss}, {"head": 2 * gemm + loss}, weight_gradient_s=gemm)


def embedding_times(setting: Setting) -> BlockTimes:
    """Time the table lookup on the first stage: values read and written once; all of its backward is W."""
    lookup = _LOOKUP_BYTES * setting.num_tokens * setting.model.hidden_size / setting.rates.memory_bytes_per_s
    return BlockTimes({"memory_bound": lookup}, {"memory_bound": lookup}, weight_gradient_s=lookup)


def _layer_gemm_s(setting: Setting) -> float:
    rates = setting.rates
    seconds = 0.0
    for outputs, inputs in layer_gemms(setting.model, setting.tensor):
        aligned = outputs % _ALIGNMENT == 0 and inputs % _ALIGNMENT == 0
        rate = rates.layer_gemm_flops_per_s * (1.0 if aligned else rates.unaligned_gemm)
        seconds += 2 * setting.num_tokens * outputs * inputs / rate
    return seconds


def _attention_s(setting: Setting) -> tuple[float, float]:
    model, rates = setting.model, setting.rates
    flops_s = layer_attention_flops(model, setting.micro) / setting.tensor / rates.attention_flops_per_s
    if setting.attention_kernel == "flash":
        causal_s = flops_s / 2
        return causal_s, _FLASH_BACKWARD * causal_s
    scores = setting.micro * model.num_attention_heads / setting.tensor * model.seq_length**2
    score_byte_s = scores / rates.memory_bytes_per_s
    return flops_s + _SCORE_BYTES_FORWARD * score_byte_s, 2 * flops_s + _SCORE_BYTES_BACKWARD * score_byte_s


def _memory_bound_s(setting: Setting) -> float:
    model = setting.model
    hidden_share = setting.tensor if setting.sequence_parallel else 1
    hidden_bytes = _HIDDEN_BYTES * model.hidden_size / hidden_share
    mlp_bytes = _MLP_BYTES * model.intermediate_size / setting.tensor * (2 if model.gated_mlp else 1)
    return setting.num_tokens * (hidden_bytes + mlp_bytes) / setting.rates.memory_bytes_per_s


def _tensor_collective_s(setting: Setting) -> float:
    if setting.tensor_ring is None:
        return 0.0
    activation_bytes = 2 * setting.num_tokens * setting.model.hidden_size
    return 2 * setting.tensor_collective_factor * float(all_reduce_s(activation_bytes, setting.tensor_ring))
