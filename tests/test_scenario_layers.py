"""Splits of layers: nothing lost, nothing empty, and the balanced one is the best there is."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import ScenarioError
from pipesim.scenario import balance, split_layers
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


def _loads(weights: list[int], counts: tuple[int, ...]) -> list[int]:
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    return [sum(weights[a:b]) for a, b in pairwise(ends)]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.data())
def test_balance_is_the_best_of_all_cuts(weights: list[int], data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, len(weights)))
    counts = balance(weights, num_stages)
    assert sum(counts) == len(weights)
    assert len(counts) == num_stages
    assert min(counts) >= 1
    cuts = combinations(range(1, len(weights)), num_stages - 1)
    every = [_loads(weights, tuple(b - a for a, b in pairwise((0, *cut, len(weights))))) for cut in cuts]
    best = min((max(loads), sum(load**2 for load in loads)) for loads in every)
    loads = _loads(weights, counts)
    assert (max(loads), sum(load**2 for load in loads)) == best


def test_balance_knows_the_head() -> None:
    """Llama-3.1 405B: 126 layers and a head of 0.63 layers on 16 ranks: smaller last stages."""
    weights = [1.0] * 125 + [1.63]
    assert balance(weights, 16) == (8,) * 14 + (7, 7)


def test_no_rounding_decides_between_equal_cuts() -> None:
    """Times of layers in seconds, and the same a little faster."""
    layers = [0.1] * 47 + [0.31]
    cut = balance(layers, 16)
    assert cut == (4, 4, *[3] * 13, 1)
    for factor in np.linspace(0.999, 1.001, 101):
        assert balance([factor * one for one in layers], 16) == cut


def test_split_for_another_number_of_stages() -> None:
    assert split_layers(6, 3, LayerSplit("balanced"), [1.0, 1, 1, 1, 1, 3]) == (3, 2, 1)
    with pytest.raises(ScenarioError, match="layers: the list has 2 entries, one a stage is needed: 3"):
        split_layers(6, 3, LayerSplit("list", (3, 3)))
    with pytest.raises(ScenarioError, match="7 stages need at least 7 layers, the model has 6"):
        split_layers(6, 7, EVEN)


@pytest.mark.parametrize(
    ("weights", "num_stages"), [([1.0], 2), ([1.0], 0), ([-1.0], 1), ([float("nan")], 1)]
)
def test_balance_refuses_what_cannot_be_cut(weights: list[float], num_stages: int) -> None:
    with pytest.raises(ValueError, match=r"groups|weights"):
        balance(weights, num_stages)


def test_only_the_ends_may_have_no_layer() -> None:
    """Embedding and loss take a layer's place each: 30 layers on 32 stages."""
    ends = (0, *[1] * 30, 0)
    assert split_layers(30, 32, LayerSplit("list", ends)) == ends
    with pytest.raises(ScenarioError, match="stage 1 is empty"):
        split_layers(3, 4, LayerSplit("list", (1, 0, 1, 1)))
