"""Domains and half-widths of a fit, from the errors of rows that it has not seen.

Rows of one configuration are not independent, so quantiles are over clusters: a model on a card, in a format,
with a release. A model without rows differs from those with rows as these do from each other; with few of
them their spread is drawn towards the pooled one of all NeMo and Megatron-Bridge rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import combinations

import numpy as np

from pipesim.evidence.calibration.row_samples import Sample, has_experts
from pipesim.evidence.calibration.samples import FloatArray
from pipesim.evidence.published.row_pairs import choice_key, close_half_width
from pipesim.prediction import is_cut_alike
from pipesim.scenario import ResolvedScenario
from pipesim.scenario.domain import model_key, sharding_class
from pipesim.scenario.schema_efficiency import Domain

_SHARE = 0.9
_FEW_CLUSTERS = 20
_ROUNDING = 1e-9
_NUM_PSEUDO_MODELS = 4
_POOLED_SPREAD = {False: 0.055, True: 0.103}
"""Of model means, without and with experts, over all NeMo and Megatron-Bridge rows."""
_RELEASE_CHANGE = {False: 0.065, True: 0.69}
"""Nine of ten changes of one configuration's step time between releases are smaller, in the same rows."""


def model_of(scenario: ResolvedScenario) -> str:
    """Name of a scenario's model; all stated times count as one."""
    return "" if scenario.model is None else model_key(scenario.model)


def found_domains(
    samples: Sequence[Sample], unseen_rows: FloatArray, unseen_models: FloatArray
) -> Iterator[Domain]:
    """Domains of a fit, those without experts first; none where times are stated.

    Parameters
    ----------
    samples : sequence of Sample
        All rows.
    unseen_rows, unseen_models : FloatArray, shape (rows,)
        Signed errors of each row by a fit that has not seen the row, or none of its model.
    """
    for experts in (False, True):
        at = np.array(
            [s.scenario.model is not None and has_experts(s.scenario) == experts for s in samples], bool
        )
        if at.any():
            chosen = [s for s, here in zip(samples, at, strict=True) if here]
            yield _domain(chosen, -np.log1p(unseen_rows[at]), -np.log1p(unseen_models[at]), experts)


def _domain(samples: list[Sample], seen: FloatArray, unseen: FloatArray, experts: bool) -> Domain:
    scenarios = [s.scenario for s in samples]
    of_seen = seen_half_width([_cluster(one) for one in samples], seen)
    of_unseen = unseen_half_width([model_of(one) for one in scenarios], unseen, _POOLED_SPREAD[experts])
    return _covered(scenarios, experts, of_seen, max(of_seen, of_unseen))


def with_pairs(domain: Domain, samples: Sequence[Sample], logs: FloatArray) -> Domain:
    """Add what pairs of rows tell of differences to the domain that they are in.

    Parameters
    ----------
    domain : Domain
        Of models with experts, or without.
    samples : sequence of Sample
        Rows that the preset predicts, those that no fit looks at among them.
    logs : FloatArray, shape (rows,)
        Of measured over predicted.
    """
    pairs: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        key = choice_key(sample.scenario)
        if key is not None and has_experts(sample.scenario) == domain.experts:
            alike[sample.set_name, key, sample.scenario.precision.compute, _release(sample.scenario)].append(
                index
            )
    for indices in alike.values():
        for i, j in combinations(indices, 2):
            measured = math.log(samples[i].row.measured / samples[j].row.measured)
            predicted = measured - float(logs[i] - logs[j])
            if abs(predicted) > _ROUNDING:
                pairs[is_cut_alike(samples[i].scenario, samples[j].scenario)].append((measured, predicted))
    return domain.model_copy(
        update={
            "schedule_pairs": len(pairs[True]),
            "schedule_close": round(close_half_width(pairs[True]), 4),
            "cut_pairs": len(pairs[False]),
            "cut_close": round(close_half_width(pairs[False]), 4),
        }
    )


def _covered(scenarios: Sequence[ResolvedScenario], experts: bool, seen: float, unseen: float) -> Domain:
    def of(value: Callable[[ResolvedScenario], str | None]) -> tuple[str, ...]:
        return tuple(sorted({found for one in scenarios if (found := value(one)) is not None}))

    def most(value: Callable[[ResolvedScenario], int]) -> int:
        return max(map(value, scenarios))

    return Domain(
        experts=experts,
        rows=len(scenarios),
        models=of(model_of),
        cards=of(_card),
        formats=of(lambda one: one.precision.compute),
        sharding=of(sharding_class),
        schedules=of(lambda one: one.schedule.name),
        releases=of(_release),
        kernels=of(lambda one: None if one.efficiency is None else one.efficiency.attention_kernel),
        context=most(lambda one: one.parallel.context),
        expert=most(lambda one: one.parallel.expert),
        nodes=most(lambda one: 0 if one.cluster is None else one.cluster.num_nodes),
        seen=round(seen, 4),
        unseen=round(unseen, 4),
        new_release=_RELEASE_CHANGE[experts],
    )


def found_domain(scenarios: Sequence[ResolvedScenario], half_width: float) -> Domain:
    """Domain of runs that one efficiency set was calibrated to."""
    return _covered(scenarios, has_experts(scenarios[0]), half_width, half_width)


def _card(scenario: ResolvedScenario) -> str | None:
    return None if scenario.cluster is None else scenario.cluster.accelerator.name


def _release(scenario: ResolvedScenario) -> str | None:
    return None if scenario.efficiency is None else scenario.efficiency.release


def _cluster(sample: Sample) -> Hashable:
    scenario = sample.scenario
    return model_of(scenario), _card(scenario), scenario.precision.compute, _release(scenario)


def seen_half_width(clusters: Sequence[Hashable], residuals: FloatArray) -> float:
    """Quantile over clusters of the largest residual in each; the largest of all with few clusters."""
    worst: dict[Hashable, float] = defaultdict(float)
    for cluster, residual in zip(clusters, np.abs(residuals).tolist(), strict=True):
        worst[cluster] = max(worst[cluster], residual)
    sizes = list(worst.values())
    return max(sizes) if len(sizes) < _FEW_CLUSTERS else float(np.quantile(sizes, _SHARE))


def unseen_half_width(models: Sequence[str], residuals: FloatArray, pooled_spread: float) -> float:
    """Half-width of a model without rows, from residuals of models each left out.

    With G models whose means have the variance b^2, drawn towards the pooled one as if by four more models,
    and a spread w within a model: ``t(G + 4) sqrt(b^2 (1 + 1 / (G + 4)) + w^2)``.
    """
    from scipy.stats import t

    of_model: dict[str, list[float]] = defaultdict(list)
    for model, residual in zip(models, residuals.tolist(), strict=True):
        of_model[model].append(residual)
    means = np.array([np.mean(found) for found in of_model.values()])
    within = np.concatenate([np.array(found) - np.mean(found) for found in of_model.values()])
    number = len(means) + _NUM_PSEUDO_MODELS
    between = (np.sum(means**2) + _NUM_PSEUDO_MODELS * pooled_spread**2) / number
    return float(t.ppf(0.95, number)) * math.sqrt(between * (1 + 1 / number) + float(np.mean(within**2)))
