"""Where an efficiency set was measured, how far it was off there, and so how sure a prediction is.

A half-width h is of the natural logarithm of measured over predicted: nine of ten steps should take between
1 / e^h and e^h of what is predicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipesim.scenario.resolved import ResolvedScenario, Transformer
    from pipesim.scenario.schema_efficiency import Domain, Efficiency

BORROWED_HALF_WIDTH = math.log(1.5)
"""Of numbers of another accelerator, another kind of model or other software: torchtitan's step times,
predicted with NeMo's numbers, are off by about that."""
_NEW_FORMAT_OR_CARD = 0.206
"""At least, without a row of the number format, of the card or of the attention kernel: as of an unseen model
on Blackwell."""
_NEW_SHARDING = 0.30
"""At least, without a row of what replicas share out: as of an unseen model under torch's FSDP."""


@dataclass(frozen=True, slots=True)
class Band:
    """How sure a predicted step time is.

    Parameters
    ----------
    half_width : float
        See the module.
    basis : str
        What it rests on, in words.
    extrapolated : tuple of str
        What the set's rows do not cover, in words, the schedule apart.
    is_new_schedule : bool
        Whether they have none under the schedule.
    """

    half_width: float
    basis: str
    extrapolated: tuple[str, ...] = ()
    is_new_schedule: bool = False

    @property
    def share(self) -> float:
        """How much longer than predicted nine of ten steps take at most, as a share."""
        return math.expm1(self.half_width)

    @property
    def warning(self) -> str:
        """What is extrapolated, in one sentence."""
        beyond = [
            *self.extrapolated,
            *(["no measured row under this schedule"] if self.is_new_schedule else []),
        ]
        return f"extrapolated: {'; '.join(beyond)}; the step time may be off by {self.share:.0%}"

    @property
    def sentence(self) -> str:
        """How sure the step time is, and why, in one sentence."""
        return f"nine of ten steps should lie within {self.share:.0%} of the predicted one: {self.basis}"

    def around(self, seconds: float) -> tuple[float, float]:
        """Least and greatest time of nine in ten."""
        return seconds * math.exp(-self.half_width), seconds * math.exp(self.half_width)


def model_key(model: Transformer) -> str:
    """Name a model by what does not change when layers are left out: width x MLP x heads (x experts)."""
    inner, experts = model.intermediate_size, ""
    if model.experts is not None:
        inner, experts = model.experts.intermediate_size, f"x{model.experts.num_experts}e"
    return f"{model.hidden_size}x{inner}x{model.num_attention_heads}{experts}"


def band_of(scenario: ResolvedScenario, schedule: str) -> Band | None:
    """Band of a scenario's step time under a schedule; None where nobody measured.

    Parameters
    ----------
    scenario : ResolvedScenario
        With an efficiency set, else there is no band.
    schedule : str
        Name of the schedule that is predicted, which need not be the scenario's.
    """
    efficiency, model = scenario.efficiency, scenario.model
    if efficiency is None:
        return None
    if scenario.borrowed_for or scenario.torch_model is not None:
        words = ", ".join(scenario.borrowed_for) or "torch models"
        return Band(BORROWED_HALF_WIDTH, f"{efficiency.name} is borrowed for {words}")
    if efficiency.error_band is not None:
        return Band(math.log1p(efficiency.error_band), f"stated with {efficiency.name}")
    if model is None or not efficiency.domains:
        return None
    kind, domain = "MoE" if model.experts is not None else "dense", domain_of(efficiency, model)
    if domain is not None:
        return _in_domain(domain, kind, scenario, efficiency, schedule)
    return Band(
        BORROWED_HALF_WIDTH, f"no {kind} row in {efficiency.name}", (f"no {kind} row in {efficiency.name}",)
    )


def domain_of(efficiency: Efficiency, model: Transformer) -> Domain | None:
    """Find what a set's rows of models with experts, or without, cover; None where it has none."""
    alike = (one for one in efficiency.domains if one.experts == (model.experts is not None))
    return next(alike, None)


def _in_domain(
    domain: Domain, kind: str, scenario: ResolvedScenario, efficiency: Efficiency, schedule: str
) -> Band:
    assert scenario.model is not None
    assert scenario.cluster is not None
    if not domain.rows:
        half_width = math.hypot(max(domain.unseen, _NEW_FORMAT_OR_CARD), domain.new_release)
        words = f"no row of {efficiency.name} was measured"
        return Band(half_width, words, (words,))
    seen = model_key(scenario.model) in domain.models
    half_width = domain.seen if seen else domain.unseen
    missing = []
    if not seen:
        missing.append("of this model")
    for value, known, least, words in (
        (scenario.precision.compute, domain.formats, _NEW_FORMAT_OR_CARD, "in {}"),
        (scenario.cluster.accelerator.name, domain.cards, _NEW_FORMAT_OR_CARD, "on {}"),
        (sharding_class(scenario), domain.sharding, _NEW_SHARDING, "with optimizer {}"),
    ):
        if value not in known:
            half_width = max(half_width, least)
            missing.append(words.format(value))
    is_new_schedule = schedule not in domain.schedules
    if is_new_schedule:
        half_width = max(half_width, domain.unseen)
    for number, most, words in (
        (scenario.parallel.context, domain.context, "with context {}"),
        (scenario.parallel.expert, domain.expert, "with expert {}"),
        (scenario.cluster.num_nodes, domain.nodes, "on {} nodes"),
    ):
        if number > most:
            half_width = max(half_width, domain.unseen)
            missing.append(words.format(number) + f" (at most {most})")
    if efficiency.release is not None and efficiency.release not in domain.releases:
        half_width = math.hypot(half_width, domain.new_release)
        missing.append(f"of release {efficiency.release}")
    if domain.kernels and efficiency.attention_kernel not in domain.kernels:
        half_width = math.hypot(max(half_width, _NEW_FORMAT_OR_CARD), domain.new_release)
        missing.append(f"with {efficiency.attention_kernel} attention")
    whose = "this model among them" if seen else "none of this model"
    basis = f"{domain.rows} measured {kind} rows of {efficiency.name}, {whose}"
    beyond = tuple(f"no {kind} row {one} in {efficiency.name}" for one in missing)
    return Band(half_width, basis, beyond, is_new_schedule)


def sharding_class(scenario: ResolvedScenario) -> str:
    """Name what replicas share out; optimizer state or not moves the same bytes, a replica alone none."""
    alone = scenario.parallel.num_replicas == 1
    return "plain" if alone or scenario.sharding == "sharded" else scenario.sharding
