"""Where traffic meets, a plan finds what simulating every configuration finds; benchmarks take 20 spaces."""

import pytest
from test_plan import every_configuration, small

from pipesim.questions.planning import plan

SCHEDULES = ("1f1b", "zb-v")


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster__nics_per_node": 1, "cluster__inter_node": "roce-100"},
        {"cluster__nics_per_node": 2, "cluster__inter_node": "roce-100", "optimizer": "plain"},
        {"cluster__nics_per_node": 1, "model__hidden_size": 1024},
    ],
)
def test_the_plan_is_what_the_engine_says_of_every_configuration(changes):
    scenario = small(batch__global=8, cluster__gpus_per_node=2, **changes)
    expected = every_configuration(scenario, SCHEDULES)
    found = plan(scenario, top=3, schedules=SCHEDULES, num_workers=1)
    assert found.certain
    assert [choice.step_time_s for choice in found.choices] == pytest.approx(
        [one[0] for one in expected[:3]], rel=1e-9
    )
