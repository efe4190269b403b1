"""Parameter counts of public checkpoints from the configurations they were published with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipesim.costs.transformer.parameters import model_parameters
from pipesim.scenario import read_hf_config, scenario_from_mapping
from pipesim.scenario.loading import parse_yaml

MODELS: list[dict[str, Any]] = parse_yaml(
    (Path(__file__).parent / "data" / "public_models.yaml").read_text(encoding="utf-8")
)
RUN = {
    "cluster": {"accelerator": "h100-sxm", "num_nodes": 1},
    "parallel": {"pipeline": 8},
    "batch": {"global": 8},
}


@pytest.mark.parametrize("model", MODELS, ids=[model["name"] for model in MODELS])
def test_parameters_are_those_of_the_checkpoint(tmp_path: Path, model: dict[str, Any]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model["config"]))
    scenario = scenario_from_mapping(RUN | {"model": read_hf_config(path)})
    assert scenario.model is not None
    assert model_parameters(scenario.model) == pytest.approx(model["parameters"], rel=0.005)


def test_many_models_of_many_families() -> None:
    assert len({model["name"] for model in MODELS}) >= 40
    assert len({model["family"] for model in MODELS}) >= 20
    assert all(model["source"] for model in MODELS)
    assert sum("checked" in model for model in MODELS) >= 40
