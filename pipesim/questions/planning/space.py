"""Every way to cut a model and a batch over a cluster that the scenario's rules allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pipesim.costs import CostTable, build_costs
from pipesim.costs.network.topology import same_devices
from pipesim.errors import ScenarioError
from pipesim.scenario import ResolvedScenario
from pipesim.scenario.hardware import Cluster
from pipesim.scenario.resolved import Transformer
from pipesim.schedules import Family, family

Recompute = Literal["none", "selective", "full"]

MIN_TOKENS_PER_DEVICE = 2048
"""Sequences are not cut finer than this among context-parallel devices."""
MAX_MICRO = 64
"""Sequences of a microbatch; powers of two up to this are tried."""


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """How the devices are shared out: sizes of the parallel axes, sequences of a microbatch, what is shared.

    Activations outside of matrix multiplications are shared along the sequence where `sequence_parallel` says
    so and tensor parallelism and the sequence allow it; what replicas share out of gradients and state is
    `optimizer`, the scenario's own where it is empty.
    """

    pipeline: int
    tensor: int
    context: int
    expert: int
    data: int
    micro: int
    sequence_parallel: bool = True
    optimizer: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration.

    Parameters
    ----------
    cut : Cut
        Sizes of the parallel axes and of a microbatch.
    num_chunks : int
        Chunks a rank, v.
    recompute : {"none", "selective", "full"}
        Activations that the backward computes again.
    schedule : str
        Name of the registry.
    """

    cut: Cut
    num_chunks: int
    recompute: Recompute
    schedule: str

    def sort_key(self) -> tuple[object, ...]:
        """Order among equally fast ones; of one order's names, what more frameworks know first."""
        return (
            self.cut,
            self.num_chunks,
            self.recompute,
            -len(family(self.schedule).known_as),
            self.schedule,
        )


@dataclass(slots=True)
class Space:
    """All cuts of a scenario, with what was left out on the way.

    Parameters
    ----------
    cuts : list of Cut
        Legal for the model, the cluster and the batch.
    rejected : Counter of str
        Cuts that are not, by reason.
    """

    cuts: list[Cut] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)


def enumerate_cuts(scenario: ResolvedScenario, model: Transformer, cluster: Cluster) -> Space:
    """List the cuts that use every device of the cluster.

    Sizes of axes are divisors of the number of devices; micro is a power of two. Tensor parallelism stays
    within a node, stages have at least a layer, context parallelism leaves `MIN_TOKENS_PER_DEVICE`, and
    expert parallelism leaves a whole expert.
    """
    space = Space()
    num_gpus = cluster.num_gpus
    for tensor in _divisors(num_gpus, cluster.gpus_per_node):
        for pipeline in _divisors(num_gpus // tensor, model.num_hidden_layers):
            for context in _divisors(num_gpus // tensor // pipeline, _max_context(model)):
                data = num_gpus // tensor // pipeline // context
                for expert in _expert_sizes(model, data * context):
                    for micro in _powers_of_two(MAX_MICRO):
                        cut = Cut(pipeline, tensor, context, expert, data, micro)
                        try:
                            scenario_of(scenario, cut, 1, "none")
                        except ScenarioError as error:
                            space.rejected[f"{error.key} does not divide the model or the batch"] += 1
                        else:
                            space.cuts += _ways_to_share(scenario, model, cut)
    return space


def _ways_to_share(scenario: ResolvedScenario, model: Transformer, cut: Cut) -> Iterator[Cut]:
    """Give a cut with and without sequence parallelism, and with the optimizer's state shared out or not.

    Other levels of sharing (zero2, zero3, fsdp) are the framework's, and stay as they are stated.
    """
    sequences = (True, False) if _can_share_sequence(model, cut) else (False,)
    optimizers = [scenario.optimizer]
    if scenario.optimizer in ("plain", "sharded") and scenario.parallel.data_shard is None:
        optimizers = ["sharded", "plain"] if cut.data * cut.context > 1 else ["plain"]
    for sequence_parallel in sequences:
        for optimizer in optimizers:
            yield replace(cut, sequence_parallel=sequence_parallel, optimizer=optimizer)


def _can_share_sequence(model: Transformer, cut: Cut) -> bool:
    return cut.tensor > 1 and model.seq_length % (cut.tensor * cut.context) == 0


def changes_of(
    scenario: ResolvedScenario, cut: Cut, num_chunks: int, recompute: Recompute, schedule: str
) -> dict[str, Any]:
    """Keys that a configuration sets in a scenario, by dotted path; None takes a key of the scenario away.

    The microbatch group size is left to the schedule.
    """
    model, stated = scenario.model, scenario.keys
    assert model is not None
    changes: dict[str, Any] = {
        "parallel.pipeline": cut.pipeline,
        "parallel.tensor": cut.tensor,
        "parallel.context": cut.context,
        "parallel.expert": cut.expert,
        "parallel.data": cut.data,
        "parallel.virtual_stages": num_chunks,
        "parallel.sequence_parallel": cut.sequence_parallel and _can_share_sequence(model, cut),
        "batch.global": scenario.batch.global_size,
        "batch.micro": cut.micro,
        "recompute": recompute,
        "optimizer": cut.optimizer or scenario.optimizer,
        "schedule": schedule,
    }
    for section, key in (("parallel", "microbatch_group_size"), ("batch", "microbatches")):
        if (stated.get(section) or {}).get(key) is not None:
            changes[f"{section}.{key}"] = None
    cluster = scenario.cluster
    # Groups of nodes say themselves what the ranks of any cut have.
    if cluster is not None and cluster.other_accelerators and not cluster.groups:
        changes |= _devices_of(scenario, changes)
    return changes


def scenario_of(
    scenario: ResolvedScenario, cut: Cut, num_chunks: int, recompute: Recompute, schedule: str = "1f1b"
) -> ResolvedScenario:
    """Put a configuration into a scenario, checked as a scenario file is.

    Raises
    ------
    ScenarioError
        If it breaks a rule.
    """
    return scenario.remade(changes_of(scenario, cut, num_chunks, recompute, schedule), uncut=False)


def costs_of_cut(scenario: ResolvedScenario, cut: Cut, num_chunks: int, recompute: Recompute) -> CostTable:
    """Cost table of a cut.

    Raises
    ------
    ScenarioError
        If the layers cannot be cut into its stages.
    """
    return build_costs(scenario_of(scenario, cut, num_chunks, recompute), num_chunks=num_chunks)


def _devices_of(scenario: ResolvedScenario, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Say which ranks of another cut have which of the scenario's other accelerators."""
    cluster = scenario.cluster
    assert cluster is not None
    stated = scenario.keys["cluster"]["other_accelerators"]
    key = "cluster.other_accelerators"
    after = scenario.remade({**changes, key: None}, uncut=False).parallel
    moved = same_devices(cluster, scenario.parallel, after).other_accelerators
    named = {cluster.other_accelerators[int(rank)].name: entry for rank, entry in stated.items()}
    kept = {f"{key}.{rank}": None for rank in stated}
    return kept | {f"{key}.{rank}": named[device.name] for rank, device in moved.items()}


def chunk_counts(model: Transformer, pipeline: int, one: Family) -> list[int]:
    """Chunks a rank worth trying.

    Stages divide the layers, or the layers with embedding and head counted as one each (Megatron's
    ``account_for_embedding_in_pipeline_split`` and ``..._loss_...``); one chunk is always tried, and no more
    on a single rank.
    """
    layers = model.num_hidden_layers
    if one.chunks is not None:
        return [one.chunks] if pipeline * one.chunks <= layers else []
    if pipeline == 1:
        return [1]
    return [
        chunks
        for chunks in range(1, layers // pipeline + 1)
        if chunks == 1 or any(total % (pipeline * chunks) == 0 for total in _countable(layers, pipeline))
    ]


def recomputes(scenario: ResolvedScenario) -> Sequence[Recompute]:
    """Levels that differ: with a fused kernel there is no attention matrix to compute again."""
    fused = scenario.efficiency is not None and scenario.efficiency.attention_kernel == "flash"
    return ("none", "full") if fused or scenario.torch_model is not None else ("none", "selective", "full")


def _countable(layers: int, pipeline: int) -> tuple[int, ...]:
    return (layers,) if layers % pipeline == 0 else (layers + 1, layers + 2)


def _divisors(number: int, most: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0]


def _powers_of_two(most: int) -> Iterator[int]:
    power = 1
    while power <= most:
        yield power
        power *= 2


def _max_context(model: Transformer) -> int:
    return max(1, model.seq_length // MIN_TOKENS_PER_DEVICE)


def _expert_sizes(model: Transformer, num_replicas: int) -> list[int]:
    if model.experts is None:
        return [1]
    num_experts = model.experts.num_experts
    return [size for size in _divisors(num_replicas, num_experts) if num_experts % size == 0]
