"""Bands of predictions: what they hang on, what is said beside them, and errors of differences."""

import math
from dataclasses import replace

import pytest

from pipesim.evidence.published.judge import Judged
from pipesim.evidence.published.published_row import PublishedRow
from pipesim.prediction import difference, predict
from pipesim.scenario import scenario_from_mapping

LLAMA = {
    "model": {"preset": "llama3-70b", "num_hidden_layers": 16},
    "cluster": {"accelerator": "h100-sxm", "num_nodes": 4, "inter_node": "ib-ndr"},
    "parallel": {"pipeline": 4, "tensor": 4, "sequence_parallel": True},
    "batch": {"global": 16},
}
MIXTRAL = {**LLAMA, "model": {"preset": "mixtral-8x7b", "num_hidden_layers": 8}}


def predicted(**keys):
    return predict(scenario_from_mapping({**LLAMA, **keys}), timing="fast")


def domain(experts=False):
    found = predicted().scenario.efficiency.domains
    return next(one for one in found if one.experts == experts)


def test_a_seen_model_an_unseen_one_and_a_new_release():
    seen, unseen = predicted(), predicted(model={"preset": "qwen3-32b", "num_hidden_layers": 16})
    assert seen.band.half_width == domain().seen
    assert not seen.warnings
    assert unseen.band.half_width == domain().unseen > domain().seen
    assert any("no dense row of this model in h100-nemo" in words for words in unseen.warnings)
    later = predicted(efficiency={"release": "29.01"})
    assert later.band.half_width == pytest.approx(math.hypot(domain().seen, domain().new_release))
    assert predicted(efficiency={"release": "25.04"}).band == seen.band


def test_what_the_rows_do_not_cover_widens_the_band_and_is_said():
    sharded = predicted(optimizer="zero2", parallel={"pipeline": 1, "tensor": 4, "sequence_parallel": True})
    assert sharded.band.half_width == 0.30
    assert any("no dense row with optimizer zero2" in words for words in sharded.warnings)
    schedule = predicted(schedule="zb-h1")
    assert schedule.band.half_width == domain().unseen
    assert any("no measured row under this schedule" in words for words in schedule.warnings)
    other = predict(scenario_from_mapping({**MIXTRAL, "efficiency": "h100-nemo-2024"}), timing="fast")
    assert other.band.half_width == pytest.approx(math.log(1.5))
    assert any("no MoE row in h100-nemo-2024" in words for words in other.warnings)


def test_the_band_is_in_the_json():
    found = predicted().to_dict()
    low, high = found["step_time_band_s"]
    assert high / found["step_time_s"] == pytest.approx(math.exp(domain().seen))
    assert low * high == pytest.approx(found["step_time_s"] ** 2)
    assert "66 measured dense rows of h100-nemo" in found["step_time_band"]["basis"]


def test_a_stated_band_stands():
    assert predicted(efficiency={"error_band": 0.02}).band.half_width == pytest.approx(math.log(1.02))


def test_runs_of_ones_own_narrow_the_band_of_their_model_alone():
    preset = domain()
    changes = {"rows": 2, "models": ("1x1x1",), "seen": 0.02, "unseen": 0.02, "nodes": 10_000, "releases": ()}
    own = preset.model_copy(update=changes)
    narrowed = preset.with_own(own)
    assert (narrowed.seen, narrowed.unseen, narrowed.rows) == (0.02, preset.unseen, 2)
    assert (narrowed.models, narrowed.nodes, narrowed.releases) == (("1x1x1",), 10_000, preset.releases)


def test_configurations_of_one_model_share_errors():
    one, other = predicted(), predicted(schedule="gpipe")
    found = difference(one, other)
    assert found.log_ratio == pytest.approx(math.log(one.step_time_s / other.step_time_s))
    assert found.half_width == pytest.approx(math.hypot(0.05, 0.3 * found.log_ratio))
    assert difference(one, one).half_width == pytest.approx(0.05)
    assert not difference(one, one).is_certain
    unlike = predicted(model={"preset": "qwen3-32b", "num_hidden_layers": 16})
    bands = one.band.half_width, unlike.band.half_width
    assert difference(one, unlike).half_width == pytest.approx(math.hypot(*bands))
    narrow = replace(found, half_width=0.01, log_ratio=0.02)
    assert narrow.is_certain


def test_a_measured_time_beyond_all_bounds_lies_outside_the_band():
    """A prediction of nothing beside it is an error of exactly -1, which has no logarithm."""
    band = predicted().band
    row = PublishedRow("row", None, 1e308, "")
    assert Judged(row, "fitted", 1.0, -1.0, band=band).is_in_band is False
    assert Judged(row, "fitted", 1.0, 0.0, band=band).is_in_band is True
