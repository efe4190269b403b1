"""One row of a sweep: its full configuration, what timed it, and its numbers or why there are none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipesim.errors import PipesimError
from pipesim.prediction import Prediction, Programs, Timing, predict
from pipesim.scenario import ResolvedScenario, apply_overrides, parse_override, scenario_from_mapping

_METRICS = (
    *("num_ranks", "num_stages", "num_chunks", "num_microbatches", "step_time_s", "makespan_s"),
    *("bubble_ratio", "bubble_overhead", "span_bubble_ratio"),
    *(
        "exposed_sync_s",
        "hidden_sync_s",
        "exposed_collective_s",
        "hidden_collective_s",
        "optimizer_s",
        "comm_bytes",
    ),
    *("tokens_per_s", "samples_per_s", "model_tflops_per_gpu", "mfu", "usd_per_step"),
    *("peak_memory_bytes", "fits_memory", "fits_headroom", "synchronous"),
)


@dataclass(frozen=True, slots=True)
class RowTask:
    """A row to run; see `pipesim.questions.sweep.Sweep`."""

    index: int
    mapping: Mapping[str, Any]
    overrides: tuple[str, ...]
    file: str | None
    timing: Timing


def run_row(task: RowTask) -> dict[str, Any]:
    """Run one row; whatever goes wrong becomes its reason.

    Returns
    -------
    dict
        Column to value: ``row``, the scenario's keys by dotted path, ``status`` (ok, failed), ``evaluator``,
        metrics, and for a failed row ``reason``. Values of ranks are texts with a number a rank.
    """
    try:
        scenario = scenario_from_mapping(task.mapping, file=task.file, overrides=task.overrides)
        prediction = predict(scenario, timing=task.timing, programs=_programs())
    except PipesimError as error:
        return failed_row(task, error.headline.removeprefix(f"{task.file}: "))
    except Exception as error:  # a bug must not take the other rows with it
        return failed_row(task, f"{type(error).__name__}: {error}")
    return {
        **_configuration(task),
        **_inferred(scenario),
        "schedule": prediction.metrics.schedule,
        "status": "ok",
        "evaluator": prediction.timed_by.removesuffix(" alone"),
        **_metrics(prediction),
    }


def failed_row(task: RowTask, reason: str) -> dict[str, Any]:
    """Make a row without a result: its configuration and the reason."""
    return {**_configuration(task), "status": "failed", "reason": reason}


@cache
def _programs() -> Programs:
    """Schedules that this process has generated."""
    return Programs()


def _configuration(task: RowTask) -> dict[str, Any]:
    varied = dict(map(parse_override, task.overrides))
    columns = {"row": task.index} | {key: _cell(value) for key, value in varied.items()}
    whole = apply_overrides(task.mapping, task.overrides)
    return columns | dict(_leaves(whole, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(entry, f"{path}.{key}" if path else key)
    else:
        yield path, _cell(value)


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return json.dumps(value, default=str)


def _inferred(scenario: ResolvedScenario) -> dict[str, Any]:
    """Say what the scenario came to, under the same keys as in its file where there is one."""
    parallel, batch, cluster, model = scenario.parallel, scenario.batch, scenario.cluster, scenario.model
    columns: dict[str, Any] = {
        "parallel.pipeline": parallel.pipeline,
        "parallel.tensor": parallel.tensor,
        "parallel.context": parallel.context,
        "parallel.expert": parallel.expert,
        "parallel.data": parallel.data,
        "batch.global": batch.global_size,
        "batch.micro": batch.micro,
        "batch.microbatches": batch.num_microbatches,
        "recompute": scenario.recompute,
        "optimizer": scenario.optimizer,
        "network.p2p": scenario.network.p2p,
        "num_gpus": parallel.num_gpus,
    }
    named = model or scenario.torch_model
    if model is not None:
        columns["seq_length"] = model.seq_length
    if named is not None and cluster is not None:
        columns |= {
            "model_name": named.name,
            "accelerator": cluster.accelerator.name,
            "intra_node_bytes_per_s": cluster.intra_node.bytes_per_s,
            "inter_node_bytes_per_s": cluster.inter_node.bytes_per_s,
        }
    return columns


def _metrics(prediction: Prediction) -> dict[str, Any]:
    document = prediction.to_dict()
    columns = {name: document[name] for name in _METRICS}
    tokens, num_gpus = document["tokens_per_s"], prediction.costs.num_gpus
    columns["tokens_per_s_per_gpu"] = None if tokens is None or not num_gpus else tokens / num_gpus
    columns["memory_limit_bytes"] = prediction.costs.memory_limit_bytes
    for name in ("bubble_ratio", "peak_in_flight", "peak_memory_bytes"):
        of_ranks = [rank[name] for rank in document["ranks"]]
        columns[f"{name}_by_rank"] = None if None in of_ranks else " ".join(map(str, of_ranks))
    return columns
