"""How long one transformer layer, the embedding and the head take on one device, for one microbatch.

A closed form with few parameters, each an effective number of one generation of training software on one kind
of device (`pipesim.scenario.resolved.Efficiency`); byte counts are fixed. Per layer, T tokens a device::

    gemm              2 T N K / (peak * gemm efficiency), longer where N or K is not a multiple of 64; with
                      some sets also the time in which it moves and quantises its operands (see `products`)
    attention         flash: 2 b s^2 hq / t FLOPs (the causal half), backward 2.5 times
                      unfused: 4 b s^2 hq / t FLOPs and 13 bytes a score, backward twice the FLOPs, 20 bytes
    memory bound      22 T h bytes (/ t with sequence parallelism) + 4 T f / t (twice that when gated),
                      backward 1.5 times
    tensor collective two all-reduces of 2 T h bytes, as many in the backward; reduce-scatter with
                      all-gather moves as much
    context exchange  (c - 1) times keys and values of T tokens around a ring, each beside a c-th of the
                      attention; in the backward their gradients too. Other ways: see `context_exchange`
    overhead          a stated time, backward twice that, recomputing none

A layer with experts sends each token to k of them and back::

    gemm              router and shared experts as above; k T rows through the experts' matrices, times the
                      imbalance where experts are shared out, at the rate of grouped products
    expert exchange   dispatch and combine, all-to-all of 2 k T h / t bytes each, as many in the backward; or
                      one copy of T h / t values to each node and device that a token's experts are on
    tensor collective the MLP's gather and scatter move k times the bytes, shared experts theirs beside them
    memory bound      8 k T h / t bytes to sort tokens by expert, twice where they are exchanged, or as often
                      as the set says
    overhead          what a layer without CUDA graphs is shorter than the host's launches take

The backward of a matrix multiplication is two of its size. W runs those for the weights and half of the
overhead; I runs everything else, recomputation included, so I and W add up to B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pipesim.costs.network.alpha_beta import LinkCost, Ring, all_gather_s, all_reduce_s
from pipesim.costs.network.exchange import Exchange
from pipesim.costs.transformer.context_exchange import context_exchange_s
from pipesim.costs.transformer.flops import (
    Shapes,
    attention_gemms,
    head_flops,
    latent_up_gemms,
    layer_attention_flops,
    mlp_gemms,
    prediction_gemms,
    router_flops,
)
from pipesim.costs.transformer.layer_exchange import NOTHING_MOVED, Moved, layer_exchange
from pipesim.costs.transformer.products import ProductTimes, Rates, products
from pipesim.costs.transformer.trained import adapter_shapes
from pipesim.scenario.resolved import (
    ALL_TRAINED,
    ActivationFormat,
    ContextExchange,
    Experts,
    RecomputeModule,
    TrainableModule,
    Trained,
    Transformer,
)

PARTS = (
    "gemm",
    "attention",
    "memory_bound",
    "tensor_collective",
    "context_exchange",
    "expert_exchange",
    "overhead",
    "head",
    "recompute",
    "boundary_gather",
    "offload",
    "shard_exchange",
)
"""What forward and backward times consist of, in the order that pictures stack them."""

_SCORE_BYTES_FORWARD, _SCORE_BYTES_BACKWARD = 13, 20
_FLASH_BACKWARD = 2.5
_MEMORY_BOUND_BACKWARD = 1.5
_HIDDEN_BYTES, _MLP_BYTES = 22, 4
_SORT_BYTES = 8
_NORM_BYTES = 8
"""Of the bytes of the hidden size, those that its two norms read and write."""
_LOGIT_BYTES = 12
_WIDE_BYTES = 2
_LOOKUP_BYTES = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """What the time of a layer depends on.

    `tensor_ring` is None without tensor parallelism; its base latency stands for all latency of a collective.
    `context_link` is None without context parallelism, `exchange` without expert parallelism.
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
    context: int = 1
    context_exchange: ContextExchange = "ring"
    context_link: LinkCost | None = None
    context_group: Exchange | None = None
    """Devices that exchange heads for positions: all that share a sequence, or the inner group of them."""
    exchange: Exchange | None = None
    expert_tensor: int | None = None
    """Devices that share every expert's matrices; None: as many as of others."""
    expert_tensor_ring: Ring | None = None
    dispatch_bytes: float = 2.0
    """Of a value on its way to an expert."""
    overlap_slowdown: float = 0.0
    fused_loss: bool = False
    weights_recompute: bool = False
    """W of a recomputed layer computes it again, in place of reading what I left."""
    weight_gradient_placeholders: bool = False
    recompute_modules: tuple[RecomputeModule, ...] = ("core_attn",)
    activation_format: ActivationFormat = "16-bit"
    activation_function_bytes: float = 2.0
    trained: Trained = ALL_TRAINED
    offloaded: float = 0.0
    """Share of the layers' activations that wait in the host's memory."""
    sort_passes: float | None = None
    """Passes over the experts' rows that sort them; None: one, two where they are exchanged."""
    expert_layer_floor_s: float = 0.0
    """Least time of a forward with experts; twice that of a backward."""

    @property
    def recomputed_modules(self) -> frozenset[str]:
        """Modules that selective recomputation runs again, those inside others with them."""
        modules = set(self.recompute_modules if self.recompute == "selective" else ())
        return frozenset(modules | ({"moe_act", "shared_experts"} if "moe" in modules else set()))

    @property
    def value_bytes(self) -> int:
        """Bytes of a value of the residual stream, and of what is kept beside inputs of products."""
        return 4 if self.activation_format == "32-bit" else _WIDE_BYTES

    @property
    def num_tokens(self) -> float:
        """Tokens of one microbatch on one device of a context-parallel group."""
        return self.micro * self.model.seq_length / self.context

    @property
    def num_expert_rows(self) -> float:
        """Tokens that the busiest device's experts take together; those of its tensor group count as one.

        Where experts are cut less than other matrices, each device of that group has its part of them.
        """
        experts = self.model.experts
        if experts is None:
            return 0.0
        busy = 1.0 if self.exchange is None else experts.imbalance
        return self.num_tokens * experts.num_experts_per_tok * busy


class LayerKind(NamedTuple):
    """Whether a layer has experts, and whether it keeps all that recomputation would drop."""

    with_experts: bool
    kept: bool = False

    def setting(self, setting: Setting) -> Setting:
        """Give what the layer's time and memory depend on."""
        return replace(setting, recompute="none") if self.kept else setting


LAYER_KINDS = tuple(LayerKind(experts, kept) for kept in (False, True) for experts in (False, True))


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Seconds of one block (a layer, the embedding, the head), forward and backward by part.

    `weight_gradient_s` is the share of the backward that W runs when a schedule splits it, and
    `weight_recompute_s` what W runs on top of that and a full backward does not; `moved` are the tokens that
    its forward and its backward exchange, of which these times contain what shows.
    """

    forward_s: dict[str, float]
    backward_s: dict[str, float]
    weight_gradient_s: float
    weight_recompute_s: float = 0.0
    moved: tuple[Moved, Moved] = (NOTHING_MOVED, NOTHING_MOVED)

    @property
    def total_s(self) -> float:
        """Forward and backward together."""
        return sum(self.forward_s.values()) + sum(self.backward_s.values())


def layer_times(setting: Setting, *, with_experts: bool = False) -> BlockTimes:
    """Time one transformer layer, with one MLP or with the model's experts."""
    experts = setting.model.experts if with_experts else None
    gemm = _layer_products(setting, experts)
    attention, attention_backward = _attention_s(setting)
    memory_bound = _memory_bound_s(setting, experts)
    collective = _tensor_collective_s(setting, experts)
    to_context, from_context = context_exchange_s(setting, attention, attention_backward)
    there, back = (NOTHING_MOVED, NOTHING_MOVED) if experts is None else layer_exchange(setting, experts)
    overhead = setting.layer_overhead_s
    forward = {
        "gemm": gemm.forward_s,
        "attention": attention,
        "memory_bound": memory_bound,
        "tensor_collective": collective,
        "context_exchange": to_context,
        "overhead": overhead,
    }
    there = there.beside(sum(forward.values()))
    forward["expert_exchange"] = there.shown_s
    # The overhead is the host's, which runs ahead during a backward: recomputing pays none.
    again = {
        "none": 0.0,
        "selective": sum(_module_s(setting, experts, attention + to_context, there.shown_s)),
        "full": sum(forward.values()) - overhead,
    }
    backward = {
        "gemm": gemm.input_gradient_s + gemm.weight_gradient_s,
        "attention": attention_backward,
        "memory_bound": _MEMORY_BOUND_BACKWARD * memory_bound,
        "tensor_collective": collective,
        "context_exchange": from_context,
        "overhead": 2 * overhead,
        "recompute": again[setting.recompute],
    }
    back = back.beside(sum(backward.values()))
    backward["expert_exchange"] = back.shown_s
    if experts is not None:
        floor_s = setting.expert_layer_floor_s
        forward["overhead"] += max(0.0, floor_s - sum(forward.values()))
        backward["overhead"] += max(0.0, 2 * floor_s - sum(backward.values()))
    # I has paid for one recomputation.
    more = again[setting.recompute] if setting.weights_recompute else 0.0
    weights_s = gemm.weight_gradient_s + overhead
    if setting.recompute == "full" or "moe" in setting.recomputed_modules:
        back = back.after(there)
    return BlockTimes(forward, backward, weights_s, more, (there, back))


def _module_s(
    setting: Setting, experts: Experts | None, core_attention_s: float, to_experts_s: float
) -> Iterator[float]:
    """Forward of each module that selective recomputation runs again in a layer."""
    model, tensor, rows = setting.model, setting.tensor, setting.num_expert_rows
    modules, rate = setting.recomputed_modules, setting.rates.memory_bytes_per_s
    hidden_share = tensor if setting.sequence_parallel else 1
    inner_bytes = _MLP_BYTES / tensor * (2 if model.gated_mlp else 1)
    if "core_attn" in modules:
        yield core_attention_s
    if "layernorm" in modules:
        yield setting.num_tokens * _NORM_BYTES * model.hidden_size / hidden_share / rate
    if "mla_up_proj" in modules:
        yield products(latent_up_gemms(model, tensor), setting.num_tokens, setting.rates).forward_s
    if experts is None:
        if "mlp" in modules:
            shapes = mlp_gemms(model, model.intermediate_size, tensor)
            yield products(shapes, setting.num_tokens, setting.rates).forward_s
            yield setting.num_tokens * inner_bytes * model.intermediate_size / rate
            yield _tensor_collective_s(setting, None) / 2
        return
    if "moe" in modules:
        dense_half = _tensor_collective_s(setting, None) / 2
        yield router_flops(model, setting.num_tokens / tensor) / setting.rates.layer_gemm_flops_per_s
        yield _routed_products(setting, experts).forward_s
        yield to_experts_s
        yield _sort_s(setting) + _tensor_collective_s(setting, experts) - dense_half
    if "moe_act" in modules:
        yield rows * inner_bytes * experts.intermediate_size / rate
    if "shared_experts" in modules and experts.shared_intermediate_size:
        shapes = mlp_gemms(model, experts.shared_intermediate_size, tensor)
        yield products(shapes, setting.num_tokens, setting.rates).forward_s
        yield setting.num_tokens * inner_bytes * experts.shared_intermediate_size / rate


def head_times(setting: Setting) -> BlockTimes:
    """Time the output matrix and the loss on the last stage."""
    rates = setting.rates
    gemm = head_flops(setting.model, setting.num_tokens) / setting.tensor / rates.head_gemm_flops_per_s
    logits = setting.num_tokens * setting.model.vocab_size / setting.tensor
    loss = _LOGIT_BYTES * logits / rates.memory_bytes_per_s
    learned = 0.0 if "head" in setting.trained.frozen else gemm
    return BlockTimes({"head": gemm + loss}, {"head": gemm + learned + loss}, weight_gradient_s=learned)


def prediction_times(setting: Setting) -> BlockTimes:
    """Time what a further prediction has beside a layer and the head: two norms and a matrix behind them."""
    model, rates, rows = setting.model, setting.rates, setting.num_tokens
    gemm = products(prediction_gemms(model, setting.tensor), rows, rates)
    share = setting.tensor if setting.sequence_parallel else 1
    norms = rows * _NORM_BYTES * model.hidden_size / share / rates.memory_bytes_per_s
    learned = 0.0 if "head" in setting.trained.frozen else gemm.weight_gradient_s
    return BlockTimes(
        {"gemm": gemm.forward_s, "memory_bound": norms},
        {"gemm": gemm.input_gradient_s + learned, "memory_bound": _MEMORY_BOUND_BACKWARD * norms},
        weight_gradient_s=learned,
    )


def embedding_times(setting: Setting) -> BlockTimes:
    """Time the table lookup on the first stage: values read and written once; all of its backward is W."""
    lookup = _LOOKUP_BYTES * setting.num_tokens * setting.model.hidden_size / setting.rates.memory_bytes_per_s
    learned = 0.0 if "embedding" in setting.trained.frozen else lookup
    return BlockTimes({"memory_bound": lookup}, {"memory_bound": learned}, weight_gradient_s=learned)


def boundary_gather_s(setting: Setting) -> float:
    """Seconds in which tensor-parallel devices gather a pipeline message that each got a share of."""
    if setting.tensor_ring is None:
        return 0.0
    return float(all_gather_s(message_bytes(setting), setting.tensor_ring))


def message_bytes(setting: Setting) -> float:
    """Bytes of the residual stream of a microbatch, which one stage hands to the next."""
    return setting.value_bytes * setting.num_tokens * setting.model.hidden_size


def _layer_products(setting: Setting, experts: Experts | None) -> ProductTimes:
    model, tensor = setting.model, setting.tensor
    inner = model.intermediate_size if experts is None else experts.shared_intermediate_size
    rows, trained = setting.num_tokens, setting.trained
    total = _trained_products(setting, "attention", attention_gemms(model, tensor), rows)
    total += _trained_products(setting, "mlp", mlp_gemms(model, inner, tensor), rows)
    if experts is None:
        return total
    router = router_flops(model, rows / tensor) / setting.rates.layer_gemm_flops_per_s
    learned = 0.0 if "experts" in trained.frozen else router
    return total + ProductTimes(router, router, learned) + _routed_products(setting, experts)


def _trained_products(
    setting: Setting,
    module: TrainableModule,
    shapes: Shapes,
    num_rows: float,
    num_matrices: float = 1.0,
    rate_factor: float = 1.0,
) -> ProductTimes:
    """Time the products of a module: without gradients of frozen weights, and with what adapters add."""
    rates, trained = setting.rates, setting.trained
    alike = {"num_matrices": num_matrices, "rate_factor": rate_factor}
    times = products(shapes, num_rows, rates, **alike)
    if module in trained.frozen:
        times = replace(times, weight_gradient_s=0.0)
    if module in trained.adapted:
        times += products(adapter_shapes(shapes, trained.lora_rank), num_rows, rates, **alike)
    return times


def _routed_products(setting: Setting, experts: Experts) -> ProductTimes:
    """Products of the experts of one device, each with its share of the rows."""
    cut = setting.expert_tensor or setting.tensor
    num_members = 1 if setting.exchange is None else setting.exchange.num_members
    return _trained_products(
        setting,
        "experts",
        mlp_gemms(setting.model, experts.intermediate_size, cut),
        setting.num_expert_rows * cut / setting.tensor,
        experts.num_experts / num_members,
        setting.rates.grouped_gemm,
    )


def _attention_s(setting: Setting) -> tuple[float, float]:
    model, rates = setting.model, setting.rates
    num_shares = setting.tensor * setting.context
    flops_s = layer_attention_flops(model, setting.micro) / num_shares / rates.attention_flops_per_s
    if setting.attention_kernel == "flash":
        causal_s = flops_s / 2
        return causal_s, _FLASH_BACKWARD * causal_s
    scores = setting.micro * model.num_attention_heads / num_shares * model.seq_length**2
    score_byte_s = scores / rates.memory_bytes_per_s
    return flops_s + _SCORE_BYTES_FORWARD * score_byte_s, 2 * flops_s + _SCORE_BYTES_BACKWARD * score_byte_s


def _memory_bound_s(setting: Setting, experts: Experts | None) -> float:
    model, tokens = setting.model, setting.num_tokens
    hidden_share = setting.tensor if setting.sequence_parallel else 1
    mlp_bytes = _MLP_BYTES / setting.tensor * (2 if model.gated_mlp else 1)
    nbytes = tokens * _HIDDEN_BYTES * model.hidden_size / hidden_share
    if experts is None:
        nbytes += tokens * mlp_bytes * model.intermediate_size
    else:
        nbytes += tokens * mlp_bytes * experts.shared_intermediate_size
        nbytes += setting.num_expert_rows * mlp_bytes * experts.intermediate_size
        return nbytes / setting.rates.memory_bytes_per_s + _sort_s(setting)
    return nbytes / setting.rates.memory_bytes_per_s


def _sort_s(setting: Setting) -> float:
    """Seconds of sorting tokens by expert."""
    num_sorts: float = 1 if setting.exchange is None else 2
    if setting.sort_passes is not None:
        num_sorts = setting.sort_passes
    nbytes = num_sorts * _SORT_BYTES * setting.num_expert_rows * setting.model.hidden_size / setting.tensor
    return nbytes / setting.rates.memory_bytes_per_s


def _tensor_collective_s(setting: Setting, experts: Experts | None) -> float:
    if setting.tensor_ring is None:
        return 0.0
    row_bytes, ring = 2 * setting.model.hidden_size, setting.tensor_ring
    messages = [(setting.num_tokens, ring), (setting.num_tokens, ring)]
    if experts is not None:
        del messages[1]
        cut = setting.expert_tensor or setting.tensor
        of_experts = ring if setting.expert_tensor is None else setting.expert_tensor_ring
        if of_experts is not None:
            messages.append((setting.num_expert_rows * cut / setting.tensor, of_experts))
        if experts.shared_intermediate_size:
            messages.append((setting.num_tokens, ring))
    seconds = sum(float(all_reduce_s(rows * row_bytes, over)) for rows, over in messages)
    return setting.tensor_collective_factor * seconds
