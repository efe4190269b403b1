"""Checks of the suite's kind that take too long for it: all refits, long searches, many random schedules."""

import pytest
import test_auto_contended
import test_auto_kernels
import test_evaluate_compiled
import test_executor_gradients
import test_import_echo
import test_plan_published
import test_traced_model
from executor_pool import shared_pool

from pipesim.evidence.calibration.presets_from_tables import calibrate_published
from pipesim.evidence.calibration.recipes import RECIPES
from pipesim.evidence.published import SETS
from pipesim.evidence.published.zero_bubble_rows import PASS_TIME_FACTOR
from pipesim.scenario import scenario_from_mapping


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_shipped_value_is_found_again(recipe):
    found = calibrate_published(recipe)
    if recipe.preset == "zero-bubble-pass-times":
        assert found.values == pytest.approx({"pass_time_factor": PASS_TIME_FACTOR}, rel=1e-3)
        return
    row = SETS[recipe.sets[0]].rows()[0]
    shipped = scenario_from_mapping({**row.scenario, "efficiency": recipe.preset}).efficiency
    of_shipped = {name: getattr(shipped, name, None) for name in found.values}
    plain = {name: value for name, value in found.values.items() if of_shipped[name] is not None}
    assert plain == pytest.approx({name: of_shipped[name] for name in plain}, rel=5e-3)
    for one, kept in zip(found.domains, shipped.domains, strict=True):
        assert (one.seen, one.unseen) == pytest.approx((kept.seen, kept.unseen), abs=5e-3)


@pytest.mark.parametrize("seed", range(test_evaluate_compiled.NUM_SEEDS, 1000))
def test_the_compiled_evaluator_equals_the_exact_one_and_the_engine(seed):
    test_evaluate_compiled.test_the_compiled_evaluator_equals_the_exact_one_and_the_engine(seed)


@pytest.mark.parametrize("sample", test_import_echo.SAMPLES)
@pytest.mark.parametrize("seed", range(test_import_echo.NUM_SEEDS, 100))
def test_an_unknown_setting_is_echoed_or_refused(tmp_path, sample, seed):
    test_import_echo.test_an_unknown_setting_is_echoed_or_refused(tmp_path, sample, seed)


@pytest.mark.parametrize("seed", range(200))
def test_where_traffic_meets_no_named_order_is_faster_than_auto(seed):
    test_auto_contended.check(seed)


@pytest.mark.parametrize("name", test_executor_gradients.SYNCHRONOUS)
def test_gradients_losses_and_three_optimizer_steps_equal_the_unsplit_model(name):
    test_executor_gradients.check(name, shared_pool(), ranks=(1, 2, 4), chunks=(1, 2))


def test_sdxl_multiplies_as_published():
    # 149.438 TMACs of 25 steps with guidance, which runs the U-Net twice each, and the parameters of
    # the public checkpoint: arXiv 2404.02747 (T-GATE), huggingface.co/docs/diffusers/optimization/tgate.
    test_traced_model.test_products_and_parameters_of_models_with_skips_and_of_video_are_the_published_ones(
        "sdxl:sdxl_1024", 149_438 / 50, 2_567_463_684
    )


SHAPES = [
    (3, 1, 6, 2, "loop"),
    (4, 1, 8, 4, "loop"),
    (2, 2, 6, 3, "loop"),
    (3, 2, 4, 4, "wave"),
    (4, 2, 4, 4, "wave"),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_search_finds_the_proven_optimum_of_small_shapes(shape):
    test_auto_kernels.test_the_search_finds_the_proven_optimum_of_small_shapes(shape)


PUBLISHED = [
    # arXiv 2104.04473 Table 1
    ("sc21", "1.7B on 32 GPUs"),
    ("sc21", "39.1B on 512 GPUs"),
    ("sc21", "145.6B on 1536 GPUs"),
    # MLPerf's logs
    ("mlperf", "eos_n64_ngc24.04_nemo v4.0"),
    # NVIDIA DGX Cloud Benchmarking recipes
    ("nvidia", "llama31_70b L80 BF16 TP4 PP4 VPP5 CP2 DP2 (v25.04)"),
    ("nvidia", "llama31_70b L80 FP8 TP4 PP8 VPP5 CP1 DP2 (v25.04)"),
    ("nvidia", "llama31_405b L126 FP8 TP8 PP8 VPP8 CP2 DP8 (v25.04)"),
]


@pytest.mark.parametrize(("set_name", "label"), PUBLISHED, ids=[label for _, label in PUBLISHED])
def test_the_first_choice_is_no_worse_than_the_published_one(set_name, label):
    test_plan_published.check(set_name, label)


def test_no_published_configuration_is_called_infeasible():
    test_plan_published.test_no_published_configuration_is_called_infeasible("nvidia")
