"""Splits of layers: nothing lost, nothing empty."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import ScenarioError
from pipesim.scenario import split_layers
from pipesim.scenario.resolved import LayerSplit

EVEN = LayerSplit("even")


@given(st.integers(1, 200), st.data())
def test_even_loses_no_layer_and_never_loads_the_last_stage(num_layers: int, data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, num_layers))
    counts = split_layers(num_layers, num_stages, EVEN)
    assert sum(counts) == num_layers
    assert len(counts) == num_stages
    assert max(counts) - min(counts) <= 1
    assert counts[-1] == min(counts)


def test_split_for_another_number_of_stages() -> None:
    assert split_layers(7, 3, LayerSplit("balanced")) == (3, 2, 2)
    with pytest.raises(ScenarioError, match="layers: the list has 2 entries, one a stage is needed: 3"):
        split_layers(6, 3, LayerSplit("list", (3, 3)))
    with pytest.raises(ScenarioError, match="7 stages need at least 7 layers, the model has 6"):
        split_layers(6, 7, EVEN)


def test_only_the_ends_may_have_no_layer() -> None:
    """Embedding and loss take a layer's place each: 30 layers on 32 stages."""
    ends = (0, *[1] * 30, 0)
    assert split_layers(30, 32, LayerSplit("list", ends)) == ends
    with pytest.raises(ScenarioError, match="stage 1 is empty"):
        split_layers(3, 4, LayerSplit("list", (1, 0, 1, 1)))
