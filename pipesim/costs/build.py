"""The one way from a scenario to its cost table."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

from pipesim.costs.direct import direct_costs
from pipesim.costs.table import CostTable
from pipesim.costs.transformer.transformer_costs import model_costs
from pipesim.errors import ScenarioError
from pipesim.scenario.resolved import KeptFree, ResolvedScenario


def build_costs(
    scenario: ResolvedScenario, *, num_chunks: int, holders: tuple[tuple[int, ...], ...] | None = None
) -> CostTable:
    """Cost table of a scenario whose ranks hold `num_chunks` stages each.

    Parameters
    ----------
    scenario : ResolvedScenario
        With stated costs, a cost file (relative to the scenario's own file), or a model on a cluster.
    num_chunks : int
        Stages a rank, v; a schedule may fix its own, so this is not read from the scenario.
    holders : tuple of tuple of int, optional
        Ranks of each stage, for balanced layers (`pipesim.ir.shape.stage_holders`); by default stage s is on
        rank s mod p.

    Raises
    ------
    ScenarioError
        If costs and number of stages do not go together, torch is missing for a model in torch, and what
        `direct_costs`, `read_cost_table`, `model_costs` and `traced_costs` raise.
    """
    return _with_budget(_costs_of(scenario, num_chunks, holders), scenario.kept_free)


def _with_budget(table: CostTable, kept_free: KeptFree) -> CostTable:
    limit_bytes = table.memory_limit_bytes
    if limit_bytes is None:
        return table
    of_ranks = {rank: _with_budget(of_rank, kept_free) for rank, of_rank in table.of_ranks.items()}
    return replace(table, memory_budget_bytes=kept_free.budget_bytes(limit_bytes), of_ranks=of_ranks)


def _costs_of(
    scenario: ResolvedScenario, num_chunks: int, holders: tuple[tuple[int, ...], ...] | None
) -> CostTable:
    parallel = scenario.parallel
    if scenario.costs is not None:
        table = direct_costs(
            scenario.costs, num_ranks=parallel.pipeline, num_chunks=num_chunks, file=scenario.file
        )
        return _with_step_facts(table, scenario)
    if scenario.costs_file is not None:
        return _costs_from_file(scenario, scenario.costs_file, num_chunks)
    cluster, efficiency = scenario.cluster, scenario.efficiency
    if cluster is not None and efficiency is not None:
        if scenario.model is not None:
            return model_costs(
                scenario, scenario.model, cluster, efficiency, num_chunks=num_chunks, holders=holders
            )
        if scenario.torch_model is not None:
            _require_torch(scenario)
            from pipesim.costs.traced.traced_costs import traced_costs

            return traced_costs(
                scenario, scenario.torch_model, cluster, efficiency, num_chunks=num_chunks, holders=holders
            )
    raise ScenarioError(
        "costs need 'costs', or a model, a cluster and an efficiency", file=scenario.file, key="costs"
    )


def traced_split(scenario: ResolvedScenario, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage of a scenario with a model in torch.

    Raises
    ------
    ScenarioError
        As `build_costs`.
    """
    model, cluster, efficiency = scenario.torch_model, scenario.cluster, scenario.efficiency
    assert model is not None
    assert cluster is not None
    assert efficiency is not None
    _require_torch(scenario)
    from pipesim.costs.traced.traced_costs import traced_layers_per_stage

    return traced_layers_per_stage(scenario, model, cluster, efficiency, num_stages)


def _require_torch(scenario: ResolvedScenario) -> None:
    if importlib.util.find_spec("torch") is None:
        raise ScenarioError(
            "needs torch, which is not installed: pip install '.[torch]' in pipesim's folder",
            file=scenario.file,
            key="model.torch",
        )


def _costs_from_file(scenario: ResolvedScenario, name: str, num_chunks: int) -> CostTable:
    from pipesim.costs.file import read_cost_table

    path = Path(name)
    if scenario.file is not None:
        path = Path(scenario.file).parent / path
    table = read_cost_table(path)
    num_stages = scenario.parallel.pipeline * num_chunks
    if table.num_stages != num_stages:
        raise ScenarioError(
            f"{path} has {table.num_stages} stages, the pipeline has {num_stages} "
            f"({scenario.parallel.pipeline} ranks x {num_chunks} chunks)",
            file=scenario.file,
            key="costs.file",
        )
    return _with_step_facts(replace(table, provenance={"file": name, **table.provenance}), scenario)


def _with_step_facts(table: CostTable, scenario: ResolvedScenario) -> CostTable:
    """Add what costs alone cannot know: how many devices run, and their price."""
    return replace(
        table,
        num_gpus=scenario.parallel.num_gpus,
        price_usd_per_gpu_hour=scenario.price_usd_per_gpu_hour,
    )
