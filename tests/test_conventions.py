"""FLOP rates by the name of their convention, and measured times that no device can reach."""

import pytest

from pipesim.costs.transformer.flops import step_flops
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping
from pipesim.show.remarks import notes
from pipesim.show.result_tables import summary_table

LLAMA = {
    "model": "llama3-8b",
    "cluster": {"machine": "dgx-h100", "num_nodes": 1},
    "parallel": {"pipeline": 4},
    "batch": {"microbatches": 8},
}


def run(*overrides):
    return predict(scenario_from_mapping(LLAMA, overrides=overrides))


@pytest.mark.parametrize(("seq", "ratio"), [(8192, 1.125), (131072, 1.70)])
def test_full_attention_over_causal(seq, ratio):
    metrics = run(f"model.seq_length={seq}", "parallel.pipeline=8").metrics
    assert metrics.model_tflops_per_gpu / metrics.causal_tflops_per_gpu == pytest.approx(ratio, abs=0.005)
    assert metrics.mfu / metrics.causal_mfu == pytest.approx(ratio, abs=0.005)


def test_hardware_flops_count_what_is_recomputed():
    none, full, some = (
        run(*keys)
        for keys in ((), ("recompute=full",), ("recompute=selective", "recompute_modules=[core_attn, mlp]"))
    )
    assert none.metrics.hfu == pytest.approx(none.metrics.mfu)
    model = none.scenario.model
    sequences = 8 * 2
    again = step_flops(model, sequences, recompute="full") - step_flops(model, sequences)
    assert full.metrics.hfu / full.metrics.mfu == pytest.approx(1 + again / step_flops(model, sequences))
    attention = step_flops(model, sequences, recompute="selective") - step_flops(model, sequences)
    mlp = 32 * 2 * sequences * model.seq_length * 3 * 4096 * 14336
    assert some.costs.hardware_flops_per_step - some.costs.model_flops_per_step == pytest.approx(
        attention + mlp
    )
    half = run("recompute=full", "recompute_layers=4")
    assert half.costs.hardware_flops_per_step == pytest.approx(
        (none.costs.hardware_flops_per_step + full.costs.hardware_flops_per_step) / 2
    )


def test_a_measured_time_below_the_peak_is_impossible():
    """6 x 8.03 billion parameters and attention's causal half at 989 TFLOP/s."""
    metrics = run().metrics
    least = metrics.least_possible_s
    tokens = 8 * 2 * 8192
    products = 6 * tokens * (8.03e9 - 128256 * 4096)
    attention = 3 * 32 * 4 * 8 * 2 * 8192**2 * 4096 / 2
    assert least == pytest.approx((products + attention) / 989e12 / 8, rel=1e-3)
    assert metrics.is_impossible(0.99 * least)
    assert not metrics.is_impossible(1.01 * least)


def test_every_rate_is_printed_by_the_name_of_its_convention():
    lines = dict(summary_table(run("recompute=full")).rows)
    rates = {name: float(words.split()[-2]) for name, words in lines.items() if "FU" in name}
    assert list(rates) == [
        "MFU",
        "model FLOP/s, MFU with causal attention",
        "hardware FLOP/s, HFU with what is recomputed",
    ]
    full, causal, hardware = rates.values()
    assert causal < full < hardware
    assert len([name for name in dict(summary_table(run()).rows) if "HFU" in name]) == 0


def test_a_measured_time_that_the_peak_forbids_is_called_impossible():
    least = run().metrics.least_possible_s
    too_short, possible = (run(f"measured_step_time={factor * least} s") for factor in (0.99, 1.01))
    (said,) = [line for line in notes([too_short], lambda _: ()) if "impossible" in line]
    assert said.startswith("warning: the measured ")
    assert not any("impossible" in line for line in notes([possible], lambda _: ()))
