"""A scenario after reading: plain frozen data in SI units, every preset looked up, every size inferred.

Sections of which nothing follows from others are the schema's own, checked and frozen; the rest are the
classes here. Times are seconds, sizes bytes, rates bytes or floating-point operations per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Self, cast

from pipesim.errors import ScenarioError
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.resolved_model import Experts as Experts
from pipesim.scenario.resolved_model import LatentAttention as LatentAttention
from pipesim.scenario.resolved_model import TorchModel as TorchModel
from pipesim.scenario.resolved_model import Transformer as Transformer
from pipesim.scenario.schema_conditions import Documents as Documents
from pipesim.scenario.schema_conditions import Jitter as Jitter
from pipesim.scenario.schema_conditions import NetworkRules as NetworkRules
from pipesim.scenario.schema_conditions import Offload as Offload
from pipesim.scenario.schema_conditions import Reliability as Reliability
from pipesim.scenario.schema_efficiency import Efficiency as Efficiency

RANK_ORDER = ("tp", "cp", "ep", "dp", "pp")
"""Megatron-LM's default: tensor-parallel devices are neighbours, pipeline ranks lie farthest apart."""

OptimizerLevel = Literal["plain", "sharded", "zero2", "zero3", "fsdp"]
"""What data-parallel replicas share out: nothing, optimizer state (ZeRO-1), gradients too, weights too; or as
torch's stages run FSDP, gathering weights and reducing gradients once a step."""


RecomputeModule = Literal["core_attn", "mla_up_proj", "layernorm", "mlp", "moe", "moe_act", "shared_experts"]
"""Parts of a layer that Megatron-core can run again in the backward (``--recompute-modules``)."""

ComputeFormat = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
"""Of matrix products with weights: fp8 with a scale for each tensor, mxfp8 with one for each 32 values."""

ExpertDispatch = Literal["alltoall", "deepep", "hybridep"]

ContextExchange = Literal["ring", "all-gather", "ulysses", "hierarchical"]

ActivationFormat = Literal["32-bit", "16-bit", "fp8", "mxfp8", "nvfp4"]


@dataclass(frozen=True, slots=True)
class Parallel:
    """How the model and the batch are cut."""

    pipeline: int
    tensor: int
    data: int
    virtual_stages: int
    """Chunks a rank for schedules that let the scenario choose (v)."""
    sequence_parallel: bool
    microbatch_group_size: int | None
    """Megatron's group size N of the interleaved schedule; None leaves the schedule's own default."""
    context: int = 1
    """Devices that share every sequence, each with all layers of its stage."""
    context_exchange: ContextExchange = "ring"
    """How they hand each other keys and values, or heads."""
    context_inner: int | None = None
    """Devices of the inner groups, which exchange heads, where the exchange is hierarchical."""
    expert: int = 1
    """Devices, each with a tensor-parallel group of experts, among which a layer's experts are shared out."""
    expert_tensor: int | None = None
    """Devices that share every expert's matrices; None: as many as of other layers."""
    expert_dispatch: ExpertDispatch = "alltoall"
    """How tokens travel: a copy for every expert; or one a node and device (DeepEP, NVIDIA's HybridEP)."""
    expert_overlap: float = 0.0
    """Share of the exchange of tokens that runs beside other computations."""
    rank_order: tuple[str, ...] = RANK_ORDER
    """Axes by which devices are numbered, the fastest first."""
    overlap_gradients: bool = False
    """Reduce gradients in buckets during each stage's last backward, not after a rank's last backward."""
    data_shard: int | None = None
    """Replicas that share out among themselves; the others hold the same again. None: all of them."""
    local_steps: int = 1
    """Steps that groups of replicas take on their own before they average what they have learnt."""
    reshard_after_forward: bool = False
    """With fsdp and a pipeline, drop gathered weights when a rank goes on to another stage or direction."""
    gradient_bucket_bytes: float | None = None
    """None: as Megatron-LM, 40 million parameters, or one million a replica where that is more."""

    @property
    def num_gpus(self) -> int:
        """Devices in all; expert parallelism needs none of its own."""
        return self.pipeline * self.tensor * self.context * self.data

    @property
    def num_replicas(self) -> int:
        """Devices that hold the same weights of layers without experts: data- times context-parallel."""
        return self.data * self.context

    @property
    def num_expert_shards(self) -> int:
        """Devices that hold a layer's experts once, together."""
        return self.expert * (self.expert_tensor or self.tensor)

    @property
    def num_expert_replicas(self) -> int:
        """Devices that hold the same experts."""
        return self.tensor * self.num_replicas // self.num_expert_shards

    @property
    def num_groups(self) -> int:
        """Groups of replicas of which each shares out all there is."""
        return 1 if self.data_shard is None else self.data // self.data_shard

    @property
    def num_expert_sharing(self) -> int:
        """Of the devices that hold the same experts, those that share out among themselves."""
        return self.num_expert_replicas // self.num_groups

    @property
    def experts_apart(self) -> bool:
        """Whether experts have other replicas than the rest of a layer."""
        return self.num_expert_replicas != self.num_replicas

    @property
    def num_sharing(self) -> int:
        """Of them, those that share out among themselves."""
        return (self.data_shard or self.data) * self.context


@dataclass(frozen=True, slots=True)
class Batch:
    """Microbatches of one step of one pipeline; sequences per microbatch."""

    num_microbatches: int
    micro: int
    global_size: int | None
    """Sequences of one step over all replicas; None where the scenario has no samples."""


@dataclass(frozen=True, slots=True)
class ScheduleChoice:
    """Either a name of the registry with its options, or a CSV file of actions."""

    name: str | None
    options: dict[str, object] = field(default_factory=dict)
    csv: str | None = None


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """How layers fall to stages: ``even``, ``balanced``, or ``list`` with the layers of each stage."""

    kind: Literal["even", "balanced", "list"]
    per_stage: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Precision:
    """Number formats: of compute, and bytes a parameter in weights, gradients and optimizer state."""

    compute: ComputeFormat
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    """Master weights and moments; divided over data-parallel replicas when sharded."""
    activation_format: ActivationFormat = "16-bit"
    """Of the inputs of products with weights that are kept for the backward."""
    activation_function_bytes: float = 2.0
    """Of a value that enters an MLP's activation function, as it is kept for the backward."""
    dispatch_bytes: float = 2.0
    """Of a value that travels to an expert; it travels back in 16 bits."""


TrainableModule = Literal["embedding", "attention", "mlp", "experts", "head"]
"""Parts of a model by what may be frozen: norms go with what they precede, a router with its experts, experts
that all tokens take with the MLPs."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What of a model is trained."""

    frozen: frozenset[TrainableModule] = frozenset()
    """Modules whose weights have no gradients and no optimizer state."""
    adapted: frozenset[TrainableModule] = frozenset()
    """Of them, those with low-rank adapters, which have."""
    lora_rank: int = 0
    """Width between the two matrices of an adapter."""

    def passes_over(self, *modules: TrainableModule) -> bool:
        """Whether nothing in some modules is trained."""
        return all(module in self.frozen and module not in self.adapted for module in modules)


ALL_TRAINED = Trained()


@dataclass(frozen=True, slots=True)
class DirectCosts:
    """Costs stated in the scenario in place of a model and a cluster.

    A tuple has one entry a stage. A scalar is the time of one microbatch through one rank; a rank's v stages
    take 1/v each. Numbers may be `fractions.Fraction`: everything downstream keeps them exact.
    """

    forward_s: Real | tuple[Real, ...]
    backward_s: Real | tuple[Real, ...]
    input_gradient_s: Real | tuple[Real, ...] | None
    weight_gradient_s: Real | tuple[Real, ...] | None
    p2p_latency_s: Real
    p2p_bytes_per_s: Real | None
    """None: a transfer costs its latency and occupies nothing."""
    boundary_bytes: Real
    overlapped_pair_s: Real | None
    gradient_sync_s: Real
    optimizer_s: Real
    activation_bytes: Real | tuple[Real, ...]
    """Held for one microbatch by one rank (or one stage, for a tuple) from F to its release."""
    skips: tuple[tuple[int, int, Real], ...] = ()
    """Skip connections: source, later target, and bytes."""


@dataclass(frozen=True, slots=True)
class KeptFree:
    """What advice leaves free of a device's memory.

    Parameters
    ----------
    reserve_bytes : float
        Of context, communicators and fragmentation: what a framework cannot use for tensors.
    headroom : float
        Share of the rest, below 1.
    """

    reserve_bytes: float
    headroom: float

    def usable_bytes(self, limit_bytes: float) -> float:
        """Give what tensors can take of a device's memory."""
        return max(0.0, limit_bytes - self.reserve_bytes)

    def budget_bytes(self, limit_bytes: float) -> float:
        """Give what advice lets a run take of a device's memory."""
        return self.usable_bytes(limit_bytes) * (1 - self.headroom)


@dataclass(frozen=True, slots=True)
class ResolvedScenario:
    """Everything one prediction needs.

    Set is one of `costs`, `costs_file`, or `model` or `torch_model` with `cluster`.
    """

    name: str
    parallel: Parallel
    batch: Batch
    schedule: ScheduleChoice
    model: Transformer | None
    cluster: Cluster | None
    costs: DirectCosts | None
    costs_file: str | None
    layers: LayerSplit
    recompute: Literal["none", "selective", "full"]
    optimizer: OptimizerLevel
    efficiency: Efficiency | None
    precision: Precision
    seed: int
    price_usd_per_gpu_hour: float | None
    file: str | None
    """Where it was read from, for messages; `costs_file` and `schedule.csv` are absolute."""
    echo: dict[str, str] = field(default_factory=dict)
    """What was inferred or defaulted, key -> words with the value in both forms where units differ."""
    warnings: tuple[str, ...] = ()
    """What is legal and yet probably not what was meant, or rests on borrowed numbers."""
    network: NetworkRules = field(default_factory=NetworkRules)
    reliability: Reliability = field(default_factory=Reliability)
    jitter: Jitter | None = None
    """None: all devices and all steps are alike."""
    borrowed_for: tuple[str, ...] = ()
    """Accelerators on which the efficiency set was not fitted: its numbers are borrowed, with a warning."""
    measured_step_time_s: float | None = None
    """What a step of this scenario took for real; the difference is shown as not explained."""
    torch_model: TorchModel | None = None
    overlapped_pair_s: float | None = None
    """Of a model's forward and backward that a rank runs together; None: modelled."""
    keys: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What it was read from: the keys of a scenario file, overrides applied, references as they were."""
    uncut: bool = False
    """Read without the sizes into which model and batch are cut; see `pipesim.scenario.load_scenario`."""

    def with_(self, changes: Mapping[str, Any] | None = None, /, **sections: Any) -> Self:
        """Make another scenario, checked as a file is; this one stays as it is.

        Parameters
        ----------
        changes : Mapping, optional
            Values by dotted path, such as ``{"parallel.pipeline": 16}``.
        **sections
            The same by section, such as ``parallel={"pipeline": 16}`` or ``schedule="zb-v"``. A mapping is
            laid over the section unless it names a preset, a file or a schedule, and then takes its place;
            None takes a key away.

        Raises
        ------
        ScenarioError
            As for a file with these values.
        """
        from pipesim.scenario.overrides import blame_changes, plain

        if changes is not None and not isinstance(changes, Mapping):
            raise ScenarioError(f'found {changes!r}; needed: a mapping, such as {{"parallel.pipeline": 16}}')
        whole = plain({**(changes or {}), **sections})
        try:
            return self.remade(whole, uncut=self.uncut)
        except ScenarioError as error:
            raise blame_changes(error, self.keys, whole) from None

    def remade(self, changes: Mapping[str, Any], *, uncut: bool) -> Self:
        """As `with_`; `uncut` is that of `pipesim.scenario.load_scenario`, whatever it was for this one."""
        from pipesim.scenario.entry import scenario_from_mapping
        from pipesim.scenario.overrides import apply_changes

        mapping = apply_changes(self.keys, changes)
        made = scenario_from_mapping(mapping, file=self.file, kind=type(self), uncut=uncut)
        return cast(Self, made)

    def save(self, path: str | Path) -> None:
        """Write a file that loads as this scenario; names of files in it are relative to its folder.

        Raises
        ------
        PipesimError
            If it cannot be written.
        """
        from pipesim.scenario.writing import write_scenario

        write_scenario(self, path)

    cuda_graphs: Literal["none", "partial", "full"] = "none"
    """What of a step is captured; in full, no launch waits for the host."""
    hides_gradients: bool = False
    """Gradients are reduced beside backwards, counted in closed form; see `costs.stages.overlap`."""
    scatter_gather: bool = False
    """Pipeline messages are cut among the tensor-parallel devices although activations are not."""
    recompute_modules: tuple[RecomputeModule, ...] = ("core_attn",)
    """What selective recomputation runs again."""
    recompute_layers: tuple[int, ...] | None = None
    """First layers of each stage that full recomputation runs again, one number or one a stage; None: all."""
    offload: Offload = field(default_factory=Offload)
    trained: Trained = ALL_TRAINED
    recompute_for_weights: Literal["held", "again"] = "held"
    """Whether a recomputed layer's W reads what I left, or recomputes again."""
    kept_free: KeptFree = KeptFree(0.0, 0.0)

    @property
    def sharding(self) -> OptimizerLevel:
        """What replicas share out; without a pipeline fsdp gathers and reduces every microbatch, as zero3."""
        return "zero3" if self.optimizer == "fsdp" and self.parallel.pipeline == 1 else self.optimizer
