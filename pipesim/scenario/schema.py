"""The scenario file's keys: what may stand where. Meaning across keys is `resolve`'s business.

References (presets, Hugging Face files) are written out by `expand` before these models see them, so each
model is the full list of fields that a user may also state directly. Every field's description is what a
message says where the key is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

from pipesim.scenario.nearest import did_you_mean
from pipesim.scenario.problems import refused
from pipesim.scenario.quantities import (
    Bytes,
    BytesPerS,
    Count,
    CountOrZero,
    NumberOrZero,
    PerStageBytes,
    PerStagePositiveSeconds,
    PerStageSeconds,
    Pieces,
    PositiveBytes,
    PositiveNumber,
    PositiveSeconds,
    Seconds,
    Share,
    ShareBelowOne,
    ShareOrZero,
)
from pipesim.scenario.resolved import (
    ActivationFormat,
    ComputeFormat,
    ContextExchange,
    ExpertDispatch,
    LayerSplit,
    OptimizerLevel,
    RecomputeModule,
    TrainableModule,
)
from pipesim.scenario.schema_cluster import Accelerator as Accelerator
from pipesim.scenario.schema_cluster import ClusterKeys as ClusterKeys
from pipesim.scenario.schema_cluster import Keys as Keys
from pipesim.scenario.schema_cluster import Link as Link
from pipesim.scenario.schema_cluster import NodeGroupKeys as NodeGroupKeys
from pipesim.scenario.schema_cluster import PeakKeys as PeakKeys
from pipesim.scenario.schema_cluster import SiteLink as SiteLink
from pipesim.scenario.schema_cluster import Switches as Switches
from pipesim.scenario.schema_conditions import Documents as Documents
from pipesim.scenario.schema_conditions import Jitter, NetworkRules, Offload, Reliability
from pipesim.scenario.schema_efficiency import Domain as Domain
from pipesim.scenario.schema_efficiency import Efficiency
from pipesim.scenario.schema_model import ModelKeys as ModelKeys
from pipesim.scenario.schema_model import TorchModelKeys as TorchModelKeys


class ParallelKeys(Keys):
    """``parallel:``."""

    pipeline: Pieces = Field(description="number of pipeline ranks")
    tensor: Count = Field(default=1, description="devices that share every layer's matrices")
    context: Count = Field(default=1, description="devices that share every sequence")
    context_exchange: ContextExchange = Field(
        default="ring",
        description="how they share it: keys and values around a ring or gathered by all, heads for "
        "positions (ulysses), or heads in inner groups and a ring around these (hierarchical)",
    )
    context_inner: Count | None = Field(
        default=None, description="devices of an inner group; needed by hierarchical, of no use otherwise"
    )
    expert: Count = Field(
        default=1, description="devices, or groups of expert_tensor, that share out a layer's experts"
    )
    expert_tensor: Count | None = Field(
        default=None,
        description="devices that share every expert's matrices; as many as tensor by default, or 1 where "
        "expert would not divide the replicas otherwise",
    )
    expert_dispatch: ExpertDispatch = Field(
        default="alltoall",
        description="how tokens travel to experts: a copy for each, or one a node and device",
    )
    expert_overlap: ShareOrZero | None = Field(
        default=None,
        description="share of that beside computations; 0 by default, 0.5 with deepep and hybridep",
    )
    data: Count | None = Field(
        default=None, description="replicas; by default what the cluster's devices leave"
    )
    rank_order: str | None = Field(
        default=None,
        description="axes by which devices are numbered, the fastest first; tp-cp-ep-dp-pp by default",
    )
    virtual_stages: Pieces = Field(default=1, description="chunks a rank, for schedules that leave them open")
    sequence_parallel: bool | None = Field(
        default=None,
        description="cut what tensor parallelism leaves whole along the sequence; false by default",
    )
    overlap_gradients: bool | None = Field(
        default=None,
        description="reduce gradients in buckets beside a stage's last backward; false by default",
    )
    data_shard: Count | None = Field(
        default=None, description="replicas that share out among themselves (HSDP); all by default"
    )
    local_steps: Count = Field(
        default=1,
        description="steps from one synchronisation of groups of replicas to the next, as in DiLoCo; groups "
        "are of data_shard replicas, or of one where that is not stated",
    )
    reshard_after_forward: bool | None = Field(
        default=None,
        description="whether fsdp in a pipeline drops gathered weights when a rank leaves a stage; false by "
        "default, as in torchtitan",
    )
    gradient_bucket: PositiveBytes | None = Field(
        default=None,
        description="bytes of a bucket; by default 40 million parameters, or a million a replica if more",
    )
    microbatch_group_size: Count | None = Field(
        default=None, description="microbatches that an interleaved schedule runs through a chunk in a row"
    )


class BatchKeys(Keys):
    """``batch:``."""

    global_size: Count | None = Field(
        default=None, alias="global", description="sequences (or samples) of a step, over all replicas"
    )
    micro: Count = Field(default=1, description="sequences (or samples) of one microbatch")
    microbatches: Pieces | None = Field(
        default=None, description="microbatches of a step of one replica, in place of global"
    )


def _name_or_mapping(key: str) -> BeforeValidator:
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


class ScheduleKeys(BaseModel):
    """``schedule:``; what else it holds are options that the schedule itself checks."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str | None = Field(None, description="a schedule of `pipesim schedule list`; its options beside it")
    csv: str | None = Field(None, description="file with a schedule in torch's CSV, in place of a name")

    @model_validator(mode="after")
    def _one_of(self) -> ScheduleKeys:
        if (self.name is None) == (self.csv is None):
            raise refused("needed: either a name (with options) or a csv file")
        if self.csv is not None and self.model_extra:
            options = ", ".join(sorted(self.model_extra))
            raise refused(f"a csv schedule takes no options, found {options}")
        return self


class P2pKeys(Keys):
    """``costs.p2p:`` as a link: latency, and a bandwidth that the boundary's bytes cross."""

    latency: Seconds = Field(0.0, description="time beside what the bandwidth takes")
    bandwidth: BytesPerS | None = Field(None, description="rate at which a boundary's bytes cross")


class SkipKeys(Keys):
    """One of ``costs.skips:``: a tensor that a stage hands to a later one past those between."""

    source: CountOrZero = Field(description="stage that it comes from")
    target: CountOrZero = Field(description="later stage that takes it; a gradient as large comes back")
    bytes: Bytes = Field(0.0, description="its size")


def _time_or_link(value: Any) -> Any:
    return value if isinstance(value, dict) else {"latency": value}


class CostKeys(Keys):
    """``costs:`` stated directly, or the file that holds them."""

    file: str | None = Field(
        None, description="cost table that `pipesim calibrate` wrote, in place of the rest"
    )
    forward: PerStagePositiveSeconds | None = Field(
        None, description="forward of one microbatch through a rank, or through each stage"
    )
    backward: PerStagePositiveSeconds | None = Field(None, description="the same of the backward")
    input_gradient: PerStageSeconds | None = Field(
        None, description="part of the backward that the stage before waits for"
    )
    weight_gradient: PerStageSeconds | None = Field(None, description="the other part of the backward")
    weight_gradient_share: Share | None = Field(
        None, description="share of the backward, in place of the two; 0.5 by default"
    )
    p2p: Annotated[P2pKeys | None, BeforeValidator(_time_or_link)] = Field(
        None, description="time of a transfer between stages, or its latency and bandwidth; 0 s by default"
    )
    boundary: Bytes | None = Field(None, description="bytes that cross between two stages")
    skips: list[SkipKeys] = Field(
        default_factory=list, description="skip connections: source, target and bytes of each"
    )
    overlapped_pair: PositiveSeconds | None = Field(
        None,
        description="a forward and a backward of a rank run together (1/v of it on each of v stages); by "
        "default as long as both; beside a model, where exchanges with experts hide in pairs by default, all "
        "that may be stated",
    )
    activations: PerStageBytes | None = Field(
        None, description="held for one microbatch by a rank, or by each stage"
    )
    gradient_sync: Seconds | None = Field(None, description="reduction of gradients; 0 s by default")
    optimizer: Seconds | None = Field(None, description="the optimizer's step; 0 s by default")


class PrecisionKeys(Keys):
    """``precision:``."""

    compute: ComputeFormat | None = Field(
        default=None, description="format of matrix products; bf16 by default, fp16 where there is none"
    )
    activation_format: ActivationFormat | None = Field(
        default=None,
        description="format in which inputs of products are kept; that of compute by default; "
        "32-bit: in which all is kept and sent on, as with AMP O1",
    )
    activation_function_format: Literal["16-bit", "fp8"] = Field(
        default="16-bit", description="format in which inputs of the MLPs' activation functions are kept"
    )
    dispatch_format: Literal["16-bit", "fp8"] | None = Field(
        default=None,
        description="format in which tokens travel to experts; fp8 by default where compute is narrower",
    )
    weight_bytes: PositiveNumber = Field(default=2.0, description="bytes a parameter of weights")
    gradient_bytes: PositiveNumber = Field(default=4.0, description="bytes a parameter of gradients")
    optimizer_bytes: NumberOrZero = Field(
        default=12.0, description="bytes a parameter of master weights and moments"
    )


def _layer_split(value: object) -> LayerSplit:
    if value == "even" or value == "balanced":
        return LayerSplit("even" if value == "even" else "balanced")
    if not isinstance(value, (list, tuple)) or not value:
        reason = f"found {value!r}; needed: even, balanced, or a list with the layers of each stage"
        raise refused(reason)
    for stage, layers in enumerate(value):
        least = 0 if stage in (0, len(value) - 1) else 1
        if isinstance(layers, bool) or not isinstance(layers, int) or layers < least:
            reason = (
                f"stage {stage}: found {layers!r}; a whole number of at least {least} is needed "
                "(only the first and the last stage, with embedding and head, may have no layer)"
            )
            raise refused(reason)
    return LayerSplit("list", tuple(value))


def _level(value: object) -> object:
    """Take the frameworks' own names too."""
    names = {"zero1": "sharded"}
    level = names.get(value, value) if isinstance(value, str) else value
    allowed = [*get_args(OptimizerLevel), *names]
    if level is not None and level not in allowed:
        reason = f"found {value!r}{did_you_mean(str(value), allowed)}; allowed: {', '.join(allowed)}"
        raise refused(reason)
    return level


def _listed(value: object) -> object:
    """Take one value for a list of one."""
    if value is None or isinstance(value, tuple):
        return value
    return tuple(value) if isinstance(value, list) else (value,)


class TrainableKeys(Keys):
    """``trainable:``."""

    frozen: Annotated[tuple[TrainableModule, ...] | None, BeforeValidator(_listed)] = Field(
        None, description="modules whose weights stay as they are"
    )
    lora_rank: Count | None = Field(
        None, description="width of low-rank adapters; all weights beside them stay as they are"
    )
    lora_modules: Annotated[
        tuple[Literal["attention", "mlp", "experts"], ...] | None, BeforeValidator(_listed)
    ] = Field(None, description="modules with adapters; attention and mlp by default")


class AnyScenarioKeys(Keys):
    """The whole file, whatever its model is stated as."""

    name: str | None = Field(None, description="name for tables; the file's by default")
    model: Keys | None = None
    cluster: ClusterKeys | None = Field(None, description="what it runs on")
    parallel: ParallelKeys = Field(description="at least {pipeline: N}")
    batch: BatchKeys = Field(description="{global: N, micro: N} or {microbatches: N}")
    schedule: Annotated[ScheduleKeys, _name_or_mapping("name")] | None = Field(
        None, description="a name of `pipesim schedule list`, or a section; 1f1b by default"
    )
    costs: CostKeys | None = Field(None, description="stated times, in place of model and cluster")
    layers: Annotated[LayerSplit | None, PlainValidator(_layer_split)] = Field(
        None, description="how layers fall to stages; a list has those of each stage; even by default"
    )
    recompute: Literal["none", "selective", "full"] | None = Field(
        None, description="activations that the backward computes anew; none by default"
    )
    cuda_graphs: Literal["none", "partial", "full"] = Field(
        "none", description="what of a step is captured as CUDA graphs, so that no launch waits for the host"
    )
    recompute_modules: Annotated[tuple[RecomputeModule, ...] | None, BeforeValidator(_listed)] = Field(
        None,
        description="modules that the backward runs again with recompute: selective; core_attn by default",
    )
    recompute_layers: Annotated[tuple[CountOrZero, ...] | None, BeforeValidator(_listed)] = Field(
        None,
        description="first layers of each stage that recompute: full runs again, one number or one a stage; "
        "all by default",
    )
    trainable: TrainableKeys | None = Field(None, description="what is trained; all by default")
    offload: Offload = Field(Offload(), description="what waits in the host's memory")
    recompute_for_weights: Literal["held", "again"] | None = Field(
        None,
        description="what W of a recomputed layer reads: held since I, or recomputed again; held by default",
    )
    optimizer: Annotated[OptimizerLevel | None, BeforeValidator(_level)] = Field(
        None, description="what replicas share out; zero1 is sharded; plain by default"
    )
    efficiency: Efficiency | None = Field(
        None, description="a preset's name or a section; the accelerator's by default"
    )
    precision: Annotated[PrecisionKeys, _name_or_mapping("compute")] | None = Field(
        None, description="the compute format or a section"
    )
    memory_reserve: Bytes | None = Field(
        None,
        description="of each device's memory, what context, communicators and fragmentation take; "
        "2 GiB by default",
    )
    headroom: ShareBelowOne | None = Field(
        None, description="share of the rest that advice leaves free, such as 5 %, which is the default"
    )
    network: NetworkRules = Field(NetworkRules(), description="how traffic behaves")
    jitter: Jitter | None = Field(None, description="how much times differ; not at all by default")
    reliability: Reliability = Field(Reliability(), description="failures, for `pipesim goodput`")
    seed: CountOrZero = Field(0, description="of all that is drawn")
    price_per_gpu_hour: NumberOrZero | None = Field(None, description="USD; the accelerator's by default")
    measured_step_time: PositiveSeconds | None = Field(
        None, description="what a step took for real; the rest is shown as not explained"
    )


class ScenarioKeys(AnyScenarioKeys):
    """The whole file, with a transformer or none."""

    model: ModelKeys | None = Field(None, description="what is trained: a preset's name or a section")


class TorchScenarioKeys(AnyScenarioKeys):
    """The whole file, with a PyTorch model."""

    model: TorchModelKeys = Field(description="{torch: module:factory}")


def keys_for(mapping: Mapping[str, Any]) -> type[AnyScenarioKeys]:
    """Choose the keys that a scenario's mapping may have, by how its model is stated."""
    model = mapping.get("model")
    return TorchScenarioKeys if isinstance(model, dict) and "torch" in model else ScenarioKeys
