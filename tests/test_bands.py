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
    assert found.half_width == pytest.approx(math.hypot(0.04, 0.3 * found.log_ratio))
    assert found.basis == "46 published pairs of schedules in all sets, as h100-nemo has none"
    assert not difference(one, one).is_certain
    cut = predicted(parallel={"pipeline": 2, "tensor": 8, "sequence_parallel": True})
    assert "pairs of cuts" in difference(one, cut).basis
    unlike = predicted(model={"preset": "qwen3-32b", "num_hidden_layers": 16})
    bands = one.band.half_width, unlike.band.half_width
    assert difference(one, unlike).half_width == pytest.approx(math.hypot(*bands))
    narrow = replace(found, half_width=0.01, log_ratio=0.02)
    assert narrow.is_certain


def test_a_set_with_pairs_of_its_own_is_as_sure_as_they_are():
    """BLOOM's grid told cuts apart less well than all sets do."""
    cluster = {"accelerator": "a100-sxm-80", "num_nodes": 4, "inter_node": "ib-hdr"}
    grid = {"cluster": cluster, "model": "gpt3-175b", "efficiency": "a100-megatron-deepspeed-bloom"}
    grid["precision"] = {"compute": "fp16"}
    one = predicted(**grid, parallel={"pipeline": 4, "tensor": 8})
    cut = predicted(**grid, parallel={"pipeline": 8, "tensor": 4})
    (known,) = one.scenario.efficiency.domains
    found = difference(one, cut)
    assert found.half_width == pytest.approx(math.hypot(known.cut_close, 0.3 * found.log_ratio))
    assert found.basis == f"{known.cut_pairs} published pairs of cuts in a100-megatron-deepspeed-bloom"
    assert known.cut_close > 0.057
    default = predicted(**{**grid, "efficiency": "a100-megatron"}, parallel={"pipeline": 4, "tensor": 8})
    assert difference(one, default).basis.startswith("both bands, as models, sets")


def test_a_set_that_nobody_measured_is_no_surer_of_differences_than_others():
    one, other = (predicted(efficiency={"domains": []}, schedule=name) for name in ("1f1b", "zb-h1"))
    assert one.band is None
    found = difference(one, other)
    assert found.half_width == pytest.approx(math.hypot(0.04, 0.3 * found.log_ratio))
    assert "46 published pairs of schedules in all sets, as h100-nemo has none" in found.basis


def test_the_a100_with_a_flash_kernel_is_extrapolated_and_says_so():
    """The rows are of 2022's unfused attention: the widest rule's band, and less time and memory."""
    cluster = {"accelerator": "a100-sxm-80", "num_nodes": 4, "inter_node": "ib-hdr"}
    a100 = {"cluster": cluster, "model": "gpt3-175b"}
    a100["parallel"] = {"pipeline": 4, "tensor": 8, "sequence_parallel": True}
    unfused, flash = predicted(**a100), predicted(**a100, efficiency="a100-megatron-flash")
    assert unfused.scenario.efficiency.name == "a100-megatron"
    assert unfused.inferred["efficiency.attention_kernel"] == "unfused (of a100-megatron)"
    assert flash.band.half_width == pytest.approx(math.hypot(0.206, 0.065))
    assert flash.band.half_width > unfused.band.half_width
    assert "extrapolated: no row of a100-megatron-flash was measured" in "; ".join(flash.warnings)
    assert flash.step_time_s < unfused.step_time_s
    assert flash.memory < unfused.memory
    fitted = ("gemm", "layer_overhead_s", "attention", "memory", "unaligned_gemm", "scatter_gather")
    for name in fitted:
        assert getattr(flash.scenario.efficiency, name) == getattr(unfused.scenario.efficiency, name)
    (of_flash,), (of_unfused,) = (one.scenario.efficiency.domains for one in (flash, unfused))
    assert of_flash.unseen == of_unfused.unseen
    stated = predicted(**a100, efficiency={"attention_kernel": "flash"})
    assert any("no dense row with flash attention in a100-megatron" in words for words in stated.warnings)
    assert stated.band.half_width == pytest.approx(flash.band.half_width)


def test_a_measured_time_beyond_all_bounds_lies_outside_the_band():
    """A prediction of nothing beside it is an error of exactly -1, which has no logarithm."""
    band = predicted().band
    row = PublishedRow("row", None, 1e308, "")
    assert Judged(row, "fitted", 1.0, -1.0, band=band).is_in_band is False
    assert Judged(row, "fitted", 1.0, 0.0, band=band).is_in_band is True
