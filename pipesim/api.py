"""The face for notebooks and scripts: a scenario that predicts; the command line asks the same questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Self, cast

from pipesim.prediction import Prediction, predict
from pipesim.scenario import load_scenario, scenario_from_mapping
from pipesim.scenario.resolved import ResolvedScenario

Time = str | float | Sequence[str | float]
"""Text with a unit, seconds, or one of them for each stage."""


class Scenario(ResolvedScenario):
    """What is to be predicted: a model on a cluster, or stated times, with a schedule.

    Made by `load`, `of` and `times`, never changed: `with_` makes another one, checked as a file is. Its
    fields are those of `pipesim.scenario.resolved.ResolvedScenario`, in SI units.
    """

    __slots__ = ()

    @classmethod
    def load(cls, path: str | Path, *overrides: str) -> Self:
        """Read a scenario file.

        Parameters
        ----------
        path : str or Path
            YAML.
        *overrides : str
            ``KEY=VALUE`` each, as ``--set`` takes them.

        Raises
        ------
        PipesimError
            One message: file, key, what was found, what is allowed.
        """
        return cast(Self, load_scenario(path, overrides, kind=cls))

    @classmethod
    def of(cls, mapping: Mapping[str, Any], *overrides: str) -> Self:
        """Make a scenario of the keys that a file would have; names of files start in the working folder.

        Parameters
        ----------
        mapping : Mapping
            Text with units, numbers, or `fractions.Fraction` where exact arithmetic is wanted.
        *overrides : str
            As for `load`.

        Raises
        ------
        PipesimError
            As for `load`.
        """
        return cast(Self, scenario_from_mapping(mapping, overrides=overrides, kind=cls))

    @classmethod
    def times(
        cls,
        *overrides: str,
        ranks: int,
        microbatches: int,
        forward: Time,
        backward: Time,
        p2p: str | float = 0,
        chunks: int = 1,
        schedule: str | None = None,
        **costs: Any,
    ) -> Self:
        """Make a scenario of stated times.

        Parameters
        ----------
        *overrides : str
            As for `load`.
        ranks, microbatches, chunks : int
            p, m, and v for schedules that leave the choice.
        forward, backward : str, float or sequence
            Time of one microbatch through one rank, or a list with one entry a stage.
        p2p : str or float
            Time of one transfer between ranks.
        schedule : str, optional
            Name of the registry; by default 1f1b.
        **costs
            Other keys of the section ``costs``, such as ``input_gradient`` or ``activations``.

        Raises
        ------
        PipesimError
            As for `load`.
        """
        return cls.of(
            {
                "name": f"{ranks} ranks, {microbatches} microbatches",
                "parallel": {"pipeline": ranks, "virtual_stages": chunks},
                "batch": {"microbatches": microbatches},
                **({} if schedule is None else {"schedule": schedule}),
                "costs": {"forward": forward, "backward": backward, "p2p": p2p, **costs},
            },
            *overrides,
        )

    def predict(
        self, schedule: str | None = None, *, chunks: int | None = None, **options: Any
    ) -> Prediction:
        """Predict one step.

        Parameters
        ----------
        schedule : str, optional
            Name of the registry; by default the schedule that the scenario names, with its options.
        chunks : int, optional
            Chunks a rank, where the schedule leaves the choice; by default the scenario's.
        **options
            Settings of the schedule that is named.

        Raises
        ------
        PipesimError
            If the schedule does not go with the scenario's sizes, or cannot run.
        """
        return predict(self, schedule, num_chunks=chunks, options=options)

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{escape(words)}</p>" for words in self.warnings)
        return f"<p>{escape(repr(self))}</p>{said}<p>{len(self.echo)} values inferred: .echo</p>"

    def __repr__(self) -> str:
        parallel, batch = self.parallel, self.batch
        schedule = self.schedule.name or self.schedule.csv
        return (
            f"<Scenario {self.name}: {parallel.num_gpus} devices, pipeline {parallel.pipeline}, "
            f"{batch.num_microbatches} microbatches, {schedule}>"
        )
