"""What to give to a framework's launcher for a configuration; its reader reads the same from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipesim.prediction import Prediction, prepare
from pipesim.prediction.prepared import PeakMemory
from pipesim.questions.memory_advice import schedule_keys
from pipesim.schedules import family
from pipesim.units import format_bytes

DEEPSPEED_FILE = "ds_config.json"
_SINGLE_STAGE = ("1F1B", "GPipe")
"""Classes of torch that have one stage a rank; torchtitan gives others at least two."""
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
        A flag with its value each; empty where the framework does not run the schedule by name, or where what
        the flags leave out would not fit in memory, see `launch_notes`.
    """
    if framework not in result.frameworks or result.scenario.model is None:
        return []
    match framework:
        case "Megatron":
            return list(_megatron(result))
        case "torch":
            return [] if _kept_whole(result).fits is False else list(_torchtitan(result))
        case _:
            return list(_deepspeed(result))


def launch_notes(result: Prediction, framework: str) -> list[str]:
    """Say what of a configuration a framework's flags leave out, and what would say it."""
    if framework != "torch" or framework not in result.frameworks or result.scenario.model is None:
        return []
    notes = []
    if result.scenario.parallel.pipeline > 1 and _stage_flags(result) is None:
        notes.append(
            f"torchtitan takes no such cut by flag: {_layers(result)} layers on {result.metrics.num_stages} "
            "stages, which parallelism.module_fqns_per_model_part lists one by one"
        )
    if _shares_states_alone(result):
        whole = _kept_whole(result)
        taken = f"{format_bytes(whole.most_bytes or 0.0, both=False)} in all"
        notes.append(
            "torchtitan has no flag for sharded optimizer states alone: without it every replica keeps them "
            f"whole, {taken}{', which does not fit, so no flags are given' if whole.fits is False else ''}; "
            "optimizer: fsdp plans for data_parallel_shard_degree"
        )
    return notes


def _shares_states_alone(result: Prediction) -> bool:
    return result.scenario.optimizer == "sharded" and result.scenario.parallel.data > 1


def _kept_whole(result: Prediction) -> PeakMemory:
    """Memory as torchtitan runs it from flags: every replica has all of the optimizer's states."""
    if not _shares_states_alone(result):
        metrics = result.metrics
        return PeakMemory(metrics.peak_memory_bytes, metrics.fits_memory, metrics.fits_headroom)
    return prepare(result.scenario.with_({**schedule_keys(result), "optimizer": "plain"})).peak_memory


def _layers(result: Prediction) -> int:
    model = result.scenario.model
    return 0 if model is None else model.num_hidden_layers


def _stage_flags(result: Prediction) -> list[str] | None:
    """Name what makes torchtitan cut the layers evenly into the stages; None where nothing does.

    It makes ceil((layers + less of the first + less of the last) / L) stages, by default one of a rank or two
    by the schedule, and gives the remainder to the first: github.com/pytorch/torchtitan,
    torchtitan/distributed/pipeline_parallel.py, ``pipeline_llm``, commit 02ef790c7961.
    """
    num_stages, num_chunks = result.metrics.num_stages, result.metrics.num_chunks
    name, *_ = family(result.schedule.name).known_as["torch"].split()
    single = name in _SINGLE_STAGE
    if result.scenario.layers.kind != "even" or single is not (num_chunks == 1):
        return None
    flags = [f"--parallelism.pipeline_parallel_{end}_stage_less_layers 0" for end in ("first", "last")]
    each = -(-_layers(result) // num_stages)
    if -(-_layers(result) // each) == num_stages:
        return [f"--parallelism.pipeline_parallel_layers_per_stage {each}", *flags]
    return flags if num_chunks == (1 if single else 2) else None


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
    scenario = result.scenario
    parallel, batch = scenario.parallel, scenario.batch
    name, *_ = family(result.schedule.name).known_as["torch"].split()
    yield f"--parallelism.tensor_parallel_degree {parallel.tensor}"
    yield f"--parallelism.pipeline_parallel_degree {parallel.pipeline}"
    if parallel.context > 1:
        yield f"--parallelism.context_parallel_degree {parallel.context}"
    if parallel.expert > 1:
        yield f"--parallelism.expert_parallel_degree {parallel.expert}"
    kind = "replicate" if scenario.optimizer in ("plain", "sharded") else "shard"
    yield f"--parallelism.data_parallel_{kind}_degree {parallel.data}"
    if kind == "replicate":
        yield "--parallelism.data_parallel_shard_degree 1"
    if parallel.pipeline > 1:
        yield f"--parallelism.pipeline_parallel_schedule {name}"
        yield f"--parallelism.pipeline_parallel_microbatch_size {batch.micro}"
        yield from _stage_flags(result) or ()
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
