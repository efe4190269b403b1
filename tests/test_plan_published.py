"""Published best configurations: always feasible, and never far ahead of a plan's first choice."""

import pytest

from pipesim.device_memory import memory_by_row
from pipesim.evidence.published.sets import published_set
from pipesim.prediction import predict
from pipesim.questions.planning import plan
from pipesim.questions.planning.bounds import CutTask, bound_cut, costs_of_cut
from pipesim.questions.planning.space import Candidate, Cut
from pipesim.scenario import scenario_from_mapping
from pipesim.schedules import Shape, generate

SCHEDULES = ("1f1b", "interleaved-1f1b")


def published(set_name, label):
    rows = [row for row in published_set(set_name).rows() if row.label == label]
    assert len(rows) == 1
    return scenario_from_mapping(rows[0].scenario)


def test_the_first_choice_is_no_worse_than_the_published_one():
    """Of arXiv 2104.04473, table 1; benchmarks plan more, with more schedules."""
    check("sc21", "1.7B on 32 GPUs", ("1f1b",))


def check(set_name, label, schedules=SCHEDULES):
    scenario = published(set_name, label)
    expected = predict(scenario).metrics
    assert expected.fits_memory
    free = scenario
    if scenario.layers.kind == "list":
        free = scenario.with_(layers="balanced")
    found = plan(free, top=1, schedules=schedules, num_workers=1)
    assert found.choices[0].step_time_s <= 1.05 * expected.step_time_s


@pytest.mark.parametrize("set_name", ["sc21", "mlperf"])
def test_no_published_configuration_is_called_infeasible(set_name):
    num_seen = 0
    for row in published_set(set_name).rows():
        scenario = scenario_from_mapping(row.scenario)
        if len(scenario.layers.per_stage or ()) > scenario.model.num_hidden_layers:
            continue  # stages without a layer are no plan's
        if scenario.layers.kind == "list":
            scenario = scenario.with_(layers="balanced")
        parallel, batch = scenario.parallel, scenario.batch
        cut = Cut(
            *(
                parallel.pipeline,
                parallel.tensor,
                parallel.context,
                parallel.expert,
                parallel.data,
                batch.micro,
            )
        )
        name = scenario.schedule.name
        candidate = Candidate(cut, parallel.virtual_stages, scenario.recompute, name)
        bounded = bound_cut(CutTask(scenario, cut, (name,)))
        assert candidate in [bound.candidate for bound in bounded.bounds], row.label
        schedule = generate(name, Shape(cut.pipeline, candidate.num_chunks, batch.num_microbatches))
        costs = costs_of_cut(scenario, cut, candidate.num_chunks, candidate.recompute)
        assert memory_by_row(schedule, costs).max() <= costs.memory_limit_bytes, row.label
        num_seen += 1
    assert num_seen >= 6
