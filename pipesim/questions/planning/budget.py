"""What a number of tokens takes: days, dollars and energy; and the smallest cluster that meets a deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from pipesim.errors import InfeasibleError, ScenarioError
from pipesim.questions.planning.plan import Choice, Plan, basis_of, plan
from pipesim.scenario import ResolvedScenario

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What training on a number of tokens takes with one choice.

    Parameters
    ----------
    num_tokens : float
        Tokens to train on.
    num_steps : float
        Steps that this is.
    seconds : float
        Time without failures, restarts or evaluation.
    usd : float, optional
        Rent of all devices for that time; None without a price.
    mwh : float, optional
        Energy if all devices draw their power limit; hosts, network and cooling come on top.
    """

    num_tokens: float
    num_steps: float
    seconds: float
    usd: float | None
    mwh: float | None

    @classmethod
    def of(cls, choice: Choice, num_tokens: float) -> Budget:
        """Multiply a step."""
        tokens_per_step = choice.result.costs.tokens_per_step
        assert tokens_per_step is not None
        num_steps = num_tokens / tokens_per_step
        usd, kwh = choice.result.metrics.usd_per_step, choice.kwh_per_step
        return cls(
            num_tokens=num_tokens,
            num_steps=num_steps,
            seconds=num_steps * choice.step_time_s,
            usd=None if usd is None else num_steps * usd,
            mwh=None if kwh is None else num_steps * kwh / 1000,
        )

    def to_dict(self) -> dict[str, float | None]:
        """Plain data for JSON."""
        return {
            "num_tokens": self.num_tokens,
            "num_steps": self.num_steps,
            "days": self.seconds / DAY_S,
            "usd": self.usd,
            "mwh": self.mwh,
        }


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """One size of the cluster: its best choice, or why it has none."""

    num_nodes: int
    num_gpus: int
    best: Plan | None
    reason: str = ""

    def to_dict(self, num_tokens: float | None) -> dict[str, Any]:
        """Plain data for JSON."""
        document: dict[str, Any] = {
            "num_nodes": self.num_nodes,
            "num_gpus": self.num_gpus,
            "reason": self.reason,
        }
        if self.best is not None:
            choice = self.best.recommended
            document |= {"configuration": choice.label, "step_time_s": choice.step_time_s}
            document["tokens_per_s"] = choice.result.metrics.tokens_per_s
            if num_tokens is not None:
                document |= Budget.of(choice, num_tokens).to_dict()
        return document


def smallest_cluster(
    scenario: ResolvedScenario,
    *,
    num_tokens: float | None = None,
    deadline_s: float | None = None,
    max_nodes: int,
    top: int,
    schedules: Sequence[str] = (),
    framework: str | None = None,
    num_workers: int | None = None,
    executor: Executor | None = None,
    time_limit_s: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[ClusterSize]:
    """Plan on more and more nodes until the model fits and the deadline is met.

    Parameters
    ----------
    scenario : ResolvedScenario
        As for `plan`; the number of nodes is searched.
    num_tokens, deadline_s : float, optional
        Tokens to train on, and seconds for them. Without them the model only has to fit.
    max_nodes : int
        Where to stop; sizes are 1, 2, 3, 4, 6, 8, 12, 16, ... nodes.
    top, schedules, framework, num_workers, executor, time_limit_s, progress
        As for `plan`; the time limit is that of each size.

    Returns
    -------
    list of ClusterSize
        All sizes tried, the last of which is the answer.

    Raises
    ------
    InfeasibleError
        If no size up to `max_nodes` will do.
    ScenarioError
        As `plan`.
    """
    model, cluster, _ = basis_of(scenario)
    if deadline_s is not None and num_tokens is None:
        raise ScenarioError("a deadline needs the number of tokens: --tokens", key="--deadline")
    tried: list[ClusterSize] = []
    for num_nodes in _sizes(max_nodes):
        num_gpus = num_nodes * cluster.gpus_per_node
        try:
            found = plan(
                scenario.remade({"cluster.num_nodes": num_nodes}, uncut=True),
                top=top,
                schedules=schedules,
                framework=framework,
                num_workers=num_workers,
                executor=executor,
                time_limit_s=time_limit_s,
                progress=lambda words, number=num_nodes: progress(f"{number} nodes: {words}"),  # type: ignore[misc]
            )
        except InfeasibleError as error:
            tried.append(ClusterSize(num_nodes, num_gpus, None, _reason(error)))
            continue
        changed = {"cluster.num_nodes": num_nodes}
        choices = [replace(choice, changes=changed | choice.changes) for choice in found.choices]
        tried.append(ClusterSize(num_nodes, num_gpus, replace(found, choices=tuple(choices))))
        if deadline_s is None or num_tokens is None:
            return tried
        if Budget.of(found.recommended, num_tokens).seconds <= deadline_s:
            return tried
    raise InfeasibleError(_none_will_do(tried, model.name, num_tokens, deadline_s))


def _sizes(most: int) -> Iterator[int]:
    power = 1
    while power <= most:
        yield power
        if power > 1 and power // 2 * 3 <= most:
            yield power // 2 * 3
        power *= 2


def _reason(error: InfeasibleError) -> str:
    lines = str(error).splitlines()
    return lines[1].strip() if len(lines) > 1 else lines[0]


def _none_will_do(
    tried: Sequence[ClusterSize], model: str, num_tokens: float | None, deadline_s: float | None
) -> str:
    last = tried[-1]
    if last.best is None or num_tokens is None or deadline_s is None:
        return f"{model} fits no cluster of up to {last.num_nodes} nodes: {last.reason}"
    days = Budget.of(last.best.recommended, num_tokens).seconds / DAY_S
    return (
        f"{model} needs {days:.3g} days for {num_tokens:.3g} tokens on {last.num_nodes} nodes, more than "
        f"{deadline_s / DAY_S:.3g}; allow more with --max-nodes"
    )
