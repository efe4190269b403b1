"""What to give to a framework's launcher for a configuration; its reader reads the same from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipesim.prediction import Prediction
from pipesim.schedules import family

DEEPSPEED_FILE = "ds_config.json"
_SHARED = {"plain": 0, "sharded": 1, "zero2": 2, "zero3": 3, "fsdp": 3}


def launch_flags(result: Prediction, framework: str) -> list[str]:
    """Write sizes, schedule, recomputation and sharing as a framework's own settings.

    Parameters
    ----------
    result : Prediction
        Of a model on a cluster.
    framework : str
        One of `pipesim.schedules.frameworks.FRAMEWORKS`; torch's are those of torchtitan.

    Returns
    -------
    list of str
        A flag with its value each; empty where the framework does not run the schedule by name.
    """
    if framework not in result.frameworks or result.scenario.model is None:
        return []
    match framework:
        case "Megatron":
            return list(_megatron(result))
        case "torch":
            return list(_torchtitan(result))
        case _:
            return list(_deepspeed(result))


def _megatron(result: Prediction) -> Iterator[str]:
    scenario = result.scenario
    parallel, batch = scenario.parallel, scenario.batch
    yield f"--tensor-model-parallel-size {parallel.tensor}"
    yield f"--pipeline-model-parallel-size {parallel.pipeline}"
    if parallel.context > 1:
        yield f"--context-parallel-size {parallel.context}"
    if parallel.expert > 1:
        yield f"--expert-model-parallel-size {parallel.expert}"
    if result.metrics.num_chunks > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {result.metrics.num_chunks}"
    yield f"--micro-batch-size {batch.micro}"
    yield f"--global-batch-size {batch.global_size}"
    if parallel.sequence_parallel:
        yield "--sequence-parallel"
    if scenario.optimizer == "sharded":
        yield "--use-distributed-optimizer"
    if scenario.recompute != "none":
        yield f"--recompute-granularity {scenario.recompute}"
    if scenario.recompute == "full":
        yield "--recompute-method uniform"
        yield "--recompute-num-layers 1"


def _torchtitan(result: Prediction) -> Iterator[str]:
    scenario, metrics = result.scenario, result.metrics
    parallel, batch, model = scenario.parallel, scenario.batch, scenario.model
    assert model is not None
    name, *_ = family(result.schedule.name).known_as["torch"].split()
    yield f"--parallelism.tensor_parallel_degree {parallel.tensor}"
    yield f"--parallelism.pipeline_parallel_degree {parallel.pipeline}"
    if parallel.context > 1:
        yield f"--parallelism.context_parallel_degree {parallel.context}"
    if parallel.expert > 1:
        yield f"--parallelism.expert_parallel_degree {parallel.expert}"
    kind = "replicate" if scenario.optimizer == "plain" else "shard"
    yield f"--parallelism.data_parallel_{kind}_degree {parallel.data}"
    if kind == "replicate":
        yield "--parallelism.data_parallel_shard_degree 1"
    if parallel.pipeline > 1:
        yield f"--parallelism.pipeline_parallel_schedule {name}"
        yield f"--parallelism.pipeline_parallel_microbatch_size {batch.micro}"
        if metrics.num_chunks > 1:
            layers_per_stage = -(-model.num_hidden_layers // metrics.num_stages)
            yield f"--parallelism.pipeline_parallel_layers_per_stage {layers_per_stage}"
    yield f"--training.local_batch_size {(batch.global_size or 0) // parallel.data}"
    yield f"--training.global_batch_size {batch.global_size}"
    yield f"--activation_checkpoint.mode {scenario.recompute}"


def _deepspeed(result: Prediction) -> Iterator[str]:
    parallel = result.scenario.parallel
    yield f"--tensor-model-parallel-size {parallel.tensor}"
    yield f"--pipeline-model-parallel-size {parallel.pipeline}"
    yield f"--deepspeed_config {DEEPSPEED_FILE}"


def deepspeed_settings(result: Prediction) -> dict[str, Any]:
    """Give what stands in the file that the flags for DeepSpeed name."""
    scenario = result.scenario
    return {
        "train_batch_size": scenario.batch.global_size,
        "train_micro_batch_size_per_gpu": scenario.batch.micro,
        "gradient_accumulation_steps": scenario.batch.num_microbatches,
        "zero_optimization": {"stage": _SHARED[scenario.optimizer]},
    }
