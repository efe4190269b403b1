"""Plans: nothing better is overlooked, choices are what simulations say, wrong input is refused."""

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipesim.cli.app import app
from pipesim.device_memory import memory_by_row
from pipesim.errors import InfeasibleError, PipesimError, ScenarioError, ScheduleError
from pipesim.prediction import predict
from pipesim.questions.planning import plan
from pipesim.questions.planning.bounds import DOES_NOT_FIT, CutTask, bound_cut, costs_of_cut
from pipesim.questions.planning.budget import Budget, smallest_cluster
from pipesim.questions.planning.dominance import better_sharing
from pipesim.questions.planning.plan import schedules_for_plan
from pipesim.questions.planning.space import Cut, chunk_counts, enumerate_cuts, recomputes, scenario_of
from pipesim.questions.planning.words import amount, main_losses, recommendation
from pipesim.scenario import load_scenario, scenario_from_mapping
from pipesim.schedules import Shape, families, family, generate
from pipesim.timing.longest_path import StepProgram

SCENARIOS = Path(__file__).parent.parent / "scenarios"
LLAMA70 = SCENARIOS / "llama3-70b-h100.yaml"
GPT3 = SCENARIOS / "gpt3-175b-h100.yaml"
SMALL = {
    "name": "small",
    "model": {
        "num_hidden_layers": 8,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "vocab_size": 32000,
        "seq_length": 4096,
    },
    "cluster": {"accelerator": "h100-sxm", "num_nodes": 2, "gpus_per_node": 4, "inter_node": "ib-ndr"},
    "parallel": {"pipeline": 2},
    "batch": {"global": 32},
    "optimizer": "sharded",
    "memory_reserve": "0 B",
    "headroom": 0,
}


def pipesim(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, PipesimError):
        return 2, result.stdout, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def small(**changes):
    return scenario_from_mapping(
        SMALL, overrides=[f"{key.replace('__', '.')}={value}" for key, value in changes.items()]
    )


def every_configuration(scenario, schedules):
    """Simulate all there is, without bounds: (step time, scenario with the schedule).

    One name of each order, and of ways to share no one that loses everywhere.
    """
    model, cluster = scenario.model, scenario.cluster
    found, orders = [], set()
    for cut in enumerate_cuts(scenario, model, cluster).cuts:
        if better_sharing(scenario, cut):
            continue
        for name, level in itertools.product(schedules, recomputes(scenario)):
            if cut.pipeline == 1 and name != "1f1b" and "1f1b" in schedules:
                continue
            for chunks in chunk_counts(model, cut.pipeline, family(name)):
                try:
                    result = predict(scenario_of(scenario, cut, chunks, level, name))
                except PipesimError:
                    continue
                order = (cut, level, result.schedule.to_csv())
                if result.metrics.fits_memory and order not in orders:
                    orders.add(order)
                    found.append((result.metrics.step_time_s, cut, chunks, level, name))
    return sorted(found, key=lambda one: one[0])


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "small.yaml"
    path.write_text(json.dumps(SMALL | {"batch": {"global": 8}}))
    return path


def test_no_configuration_is_better_than_the_first_choice(monkeypatch):
    """The bounds may end the search at once, and the best ones are found all the same."""
    monkeypatch.setattr("pipesim.questions.planning.refinement.TIMED_AT_ONCE", 16)
    accelerator = "{preset: h100-sxm, memory: 6 GB}"
    scenario = small(network__mode="ideal", cluster__accelerator=accelerator, batch__global=16)
    schedules = ("1f1b", "zb-v", "interleaved-1f1b")
    expected = every_configuration(scenario, schedules)
    found = plan(scenario, top=3, schedules=schedules, num_workers=1)
    assert len(expected) > 100
    assert [choice.step_time_s for choice in found.choices] == pytest.approx(
        [one[0] for one in expected[:3]], rel=1e-9
    )
    assert found.num_outrun > 0
    assert found.rejected[DOES_NOT_FIT] > 0
    assert all(choice.result.metrics.fits_memory for choice in found.choices)
    total = found.num_evaluated + found.num_outrun
    assert total <= len(expected) + found.num_outrun


def test_all_that_fits_is_chosen_where_so_many_are_wanted():
    scenario = small(network__mode="ideal", batch__global=8, cluster__num_nodes=1)
    expected = every_configuration(scenario, ("1f1b", "zb-v"))
    found = plan(scenario, schedules=("1f1b", "zb-v"), num_workers=1, top=len(expected))
    assert found.certain
    assert found.num_outrun == 0
    assert found.num_evaluated == len(found.timed) == len(found.choices) == len(expected)
    times = [one[0] for one in expected]
    assert [choice.step_time_s for choice in found.choices] == pytest.approx(times, rel=1e-9)
    assert [one.least_step_s for one in found.timed] == pytest.approx(times, rel=1e-9)


@pytest.mark.parametrize("name", schedules_for_plan(()))
def test_bounds_are_bounds(name):
    """Least step and least memory never exceed those of the schedule's own order."""
    scenario = small(cluster__accelerator="{preset: h100-sxm, memory: 1 PB}", model__num_hidden_layers=12)
    for cut, level in itertools.product((Cut(4, 2, 1, 1, 1, 2), Cut(2, 1, 1, 1, 4, 1)), recomputes(scenario)):
        bounds = bound_cut(CutTask(scenario, cut, (name,))).bounds
        for bound in bounds:
            if bound.candidate.recompute != level:
                continue
            chunks = bound.candidate.num_chunks
            costs = costs_of_cut(scenario, cut, chunks, level)
            schedule = generate(name, Shape(cut.pipeline, chunks, bound.num_microbatches))
            program = StepProgram.of(schedule, tied_embedding=costs.tied_embedding is not None)
            assert bound.least_step_s <= program.step_time_s(costs)
            peak = memory_by_row(program.schedule, costs).max()
            tight = scenario_from_mapping(
                SMALL,
                overrides=[
                    "model.num_hidden_layers=12",
                    f"cluster.accelerator={{preset: h100-sxm, memory: {peak * 1.0001} B}}",
                ],
            )
            assert bound.candidate in [b.candidate for b in bound_cut(CutTask(tight, cut, (name,))).bounds]


def test_cuts_use_every_device_and_obey_the_scenario_rules():
    scenario = small()
    space = enumerate_cuts(scenario, scenario.model, scenario.cluster)
    for cut in space.cuts:
        assert cut.tensor * cut.pipeline * cut.context * cut.data == 8
        assert 32 % (cut.micro * cut.data) == 0
        assert cut.tensor <= 4
    assert {cut.context for cut in space.cuts} == {1, 2}
    assert {cut.expert for cut in space.cuts} == {1}
    assert sum(space.rejected.values()) > 0


def test_experts_are_shared_out_over_replicas():
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 4096}
    scenario = scenario_from_mapping(SMALL | {"model": SMALL["model"] | experts, "batch": {"global": 8}})
    cuts = enumerate_cuts(scenario, scenario.model, scenario.cluster).cuts
    assert {cut.expert for cut in cuts} == {1, 2, 4}
    assert all((cut.data * cut.context) % cut.expert == 0 for cut in cuts)
    found = plan(scenario, top=2, schedules=("1f1b",), num_workers=1)
    assert found.choices[0].configuration()["expert"] in (1, 2, 4)


@pytest.mark.parametrize(
    ("layers", "pipeline", "expected"),
    [
        (96, 8, [1, 2, 3, 4, 6, 12]),
        (126, 8, [1, 2, 4, 8]),
        (80, 4, [1, 2, 4, 5, 10, 20]),
        (30, 4, [1, 2, 4]),
        (8, 8, [1]),
    ],
)
def test_chunks_divide_layers_or_layers_with_their_ends(layers, pipeline, expected):
    model = replace(small().model, num_hidden_layers=layers)
    assert chunk_counts(model, pipeline, family("interleaved-1f1b")) == expected
    assert chunk_counts(model, pipeline, family("1f1b")) == [1]


def test_a_choice_is_what_a_simulation_of_its_overrides_says(small_file):
    scenario = load_scenario(small_file)
    found = plan(scenario, top=2, schedules=("1f1b", "interleaved-1f1b"), num_workers=1)
    for choice in found.choices:
        again = predict(load_scenario(small_file, choice.overrides()))
        assert again.metrics.step_time_s == choice.step_time_s
        assert again.metrics.peak_memory_bytes == choice.result.metrics.peak_memory_bytes
        assert again.metrics.num_chunks == choice.configuration()["virtual_stages"]
        parts = choice.losses.to_dict()
        assert sum(parts.values()) == pytest.approx(choice.step_time_s, rel=1e-9)
        assert min(parts.values()) >= -1e-9
        gpus, power_w = 8, scenario.cluster.accelerator.tdp_w
        assert choice.kwh_per_step == pytest.approx(power_w * gpus * choice.step_time_s / 3.6e6)
    assert found.choices[0].step_time_s <= predict(scenario).metrics.step_time_s


def test_the_same_plan_every_time_and_on_any_number_of_processes():
    scenario = small(batch__global=8)
    found = [
        plan(scenario, top=4, schedules=("1f1b", "zb-v"), num_workers=workers).to_dict()
        for workers in (1, 2, 1)
    ]
    assert found[0] == found[2]
    # More processes time more at once, so more of what loses in the end is timed.
    counts = [(one.pop("num_evaluated"), one.pop("num_outrun")) for one in found]
    assert len({sum(pair) for pair in counts}) == 1
    assert found[0] == found[1]


def test_each_difference_names_the_choice_it_is_of():
    found = plan(small(batch__global=8), top=4, schedules=("1f1b", "zb-v"), num_workers=1).to_dict()
    best_s = found["results"][found["recommended"]]["step_time_s"]
    differences = {one["result"]: one["share"] for one in found["judgement"]["differences"]}
    assert sorted([found["recommended"], *differences]) == list(range(4))
    for place, share in differences.items():
        assert share == pytest.approx(found["results"][place]["step_time_s"] / best_s - 1)


def test_recompute_shows_as_a_loss():
    scenario = small(cluster__accelerator="{preset: h100-sxm, memory: 2.2 GB}")
    found = plan(scenario, schedules=("1f1b",), num_workers=1)
    again = [choice for choice in found.choices if choice.candidate.recompute == "full"]
    assert again
    assert all(choice.losses.recompute_s > 0 for choice in again)
    assert "recomputing" in main_losses(again[0].losses, again[0].step_time_s)


def test_the_schedules_of_a_plan():
    names = schedules_for_plan(())
    assert {"1f1b", "interleaved-1f1b", "zb-v", "gpipe"} <= set(names)
    assert not {"auto", "pipedream"} & set(names)
    assert schedules_for_plan(["ZB_V", "zb-v", "1f1b"]) == ("zb-v", "1f1b")
    with pytest.raises(ScheduleError, match="auto is searched anew for every set of costs"):
        schedules_for_plan(["1f1b", "auto"])
    assert Counter(families()[name].synchronous for name in names) == {True: len(names)}


def test_a_budget_is_a_number_of_steps():
    choice = plan(small(batch__global=8), top=1, schedules=("1f1b",), num_workers=1).choices[0]
    budget = Budget.of(choice, 1e12)
    assert budget.num_steps == pytest.approx(1e12 / (8 * 4096))
    assert budget.seconds == pytest.approx(budget.num_steps * choice.step_time_s)
    assert budget.usd == pytest.approx(budget.seconds / 3600 * 8 * 2.95)
    assert budget.mwh == pytest.approx(budget.seconds / 3600 * 8 * 0.7 / 1000)
    words = recommendation(choice)
    assert " on 8 h100-sxm: tensor" in words
    assert f"1 trillion tokens take {budget.seconds / 86400:,.3g} days" in words
    assert "2.95 USD a GPU-hour (preset h100-sxm, read 2026" in words


def test_amounts_in_words():
    assert [amount(value) for value in (1e12, 3e9, 1.44e6, 719326, 12.34)] == [
        *("1 trillion", "3 billion", "1.44 million", "719,326", "12.3"),
    ]


def test_the_smallest_cluster_meets_the_deadline_and_the_one_before_does_not():
    scenario = small(cluster__accelerator="{preset: h100-sxm, memory: 4 GB}", cluster__gpus_per_node=2)
    wanted = {"schedules": ("1f1b",), "top": 1, "num_workers": 1}
    fits = smallest_cluster(scenario, max_nodes=16, **wanted)
    assert fits[-1].best is not None
    assert all(size.best is None for size in fits[:-1])
    slowest = Budget.of(fits[-1].best.choices[0], 1e9).seconds
    sizes = smallest_cluster(scenario, num_tokens=1e9, deadline_s=slowest / 2.5, max_nodes=16, **wanted)
    assert [size.num_nodes for size in sizes] == [1, 2, 3, 4, 6, 8, 12, 16][: len(sizes)]
    seconds = [Budget.of(size.best.choices[0], 1e9).seconds for size in sizes if size.best]
    assert seconds[-1] <= slowest / 2.5 < seconds[-2]
    with pytest.raises(InfeasibleError, match=r"days for 1e\+09 tokens on 2 nodes"):
        smallest_cluster(scenario, num_tokens=1e9, deadline_s=1.0, max_nodes=2, **wanted)
    with pytest.raises(InfeasibleError, match="fits no cluster of up to 1 nodes"):
        smallest_cluster(load_scenario(GPT3), max_nodes=1, **wanted)
    with pytest.raises(ScenarioError, match="--tokens"):
        smallest_cluster(scenario, deadline_s=1.0, max_nodes=2, **wanted)


def test_json_has_the_promised_fields(small_file, tmp_path):
    status, out, message = pipesim(
        *("plan", small_file, "--top", 2, "--schedules", "1f1b,interleaved-1f1b", "--workers", 1, "--json"),
        *("--objective", "step_time,cost", "--tokens", "1T", "--plot", tmp_path / "plan.svg"),
    )
    assert status == 0, message
    document = json.loads(out)
    assert document["certain"] is True
    assert document["num_certain"] == 2
    assert document["num_infeasible"] == sum(document["rejected"].values()) > 0
    assert document["budget"]["usd"] > 1e3
    first, second = document["results"]
    assert first["step_time_s"] <= second["step_time_s"]
    configuration = (
        "pipeline tensor data context expert virtual_stages sequence_parallel micro_batch recompute"
    )
    promised = (
        "schedule num_ranks num_stages num_microbatches makespan_s bubble_ratio tokens_per_s mfu usd_per_step"
    )
    assert set(configuration.split()) | set(promised.split()) | {"peak_memory_bytes", "ranks"} <= set(first)
    assert first["evaluator"] == "engine"
    assert first["least_step_s"] == pytest.approx(first["step_time_s"], rel=0.05)
    assert b"</svg>" in (tmp_path / "plan.svg").read_bytes()


def test_how_the_file_cuts_its_model_is_not_read(small_file, tmp_path):
    other = SMALL | {"parallel": {"pipeline": 7, "tensor": 3, "data": 5}, "batch": {"global": 8, "micro": 9}}
    (tmp_path / "other.yaml").write_text(json.dumps(other))
    found = []
    for file in (small_file, tmp_path / "other.yaml"):
        arguments = ["plan", file, "--json", "--schedules", "1f1b", "--workers", "1"]
        run = CliRunner().invoke(app, [str(argument) for argument in arguments])
        found.append(json.loads(run.output))
    assert found[0] == found[1]
    inferred = found[0]["results"][0]["inferred"]
    assert not {"parallel.tensor", "parallel.data", "batch.micro"} & set(inferred)


def test_a_file_need_not_say_how_it_is_cut():
    bare = {key: value for key, value in SMALL.items() if key != "parallel"}
    assert scenario_from_mapping(bare, uncut=True) == scenario_from_mapping(SMALL, uncut=True)
    with pytest.raises(ScenarioError, match=r"^parallel: missing"):
        scenario_from_mapping(bare)


def test_the_winner_has_its_frameworks_and_leaves_the_headroom(small_file):
    few = ("--top", 1, "--schedules", "1f1b", "--workers", 1)
    status, out, message = pipesim("plan", small_file, *few)
    assert status == 0, message
    assert "Runs in torch, Megatron, DeepSpeed." in out
    peaks = []
    for headroom in ("0", "30 %"):
        tight = {"cluster__accelerator": "{preset: h100-sxm, memory: 4 GB}", "memory_reserve": "1 GB"}
        tight |= {"batch__global": 8}
        (best,) = plan(small(**tight, headroom=headroom), top=1, schedules="1f1b", num_workers=1).choices
        assert best.result.metrics.fits_headroom
        peaks.append(best.result.memory / 3e9)
    assert 0.7 < peaks[0] <= 1
    assert peaks[1] <= 0.7


def test_the_table_says_what_each_loses_and_why_others_were_rejected(tmp_path):
    path = tmp_path / "tight.yaml"
    cluster = SMALL["cluster"] | {"accelerator": {"preset": "h100-sxm", "memory": "4 GB"}}
    path.write_text(json.dumps(SMALL | {"cluster": cluster, "batch": {"global": 8}}))
    status, out, _ = pipesim("plan", path, "--top", 2, "--schedules", "1f1b", "--workers", 1, "--wide")
    assert status == 0
    for words in (
        "1 loses:",
        "2 loses:",
        "slower than the first",
        "does not fit in memory",
        "tokens/s/GPU",
        "no better than with sequence parallelism",
    ):
        assert words in out
    status, out, _ = pipesim(
        *("plan", path, "--schedules", "1f1b", "--workers", 1, "--tokens", "3B", "--deadline", "10 days"),
        *("--top", 1),
    )
    assert status == 0
    words = " ".join(out.split())
    assert "| nodes | best" in words
    assert "3 billion tokens take" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [
                GPT3,
                "--schedules",
                "1f1b",
                "--set",
                "cluster.num_nodes=1",
                "--set",
                "parallel.data=null",
                "--set",
                "parallel.tensor=1",
                "--workers",
                "1",
            ],
            "nothing can run on 8",
        ),
        ([SCENARIOS / "teaching.yaml"], "model: a plan needs a model and a cluster"),
        ([GPT3, "--objective", "speed"], "allowed: step_time"),
        ([GPT3, "--schedules", "2f2b"], "no schedule is called '2f2b'"),
        ([GPT3, "--tokens", "many"], "--tokens: found 'many'"),
        ([GPT3, "--tokens", "1T", "--deadline", "soon"], "--deadline"),
        ([GPT3, "--deadline", "30 days"], "needs the number of tokens"),
        (
            [
                GPT3,
                "--set",
                "layers=[12,12,12,12,12,12,12,12]",
                "--set",
                "schedule=1f1b",
                "--set",
                "parallel.virtual_stages=1",
            ],
            "even or balanced",
        ),
        ([GPT3, "--workers", 2, "--dask", "tcp://127.0.0.1:1"], "exclude each other"),
    ],
)
def test_a_wrong_plan_ends_with_one_message(arguments, message):
    status, out, said = pipesim("plan", *arguments)
    assert status == 2
    assert message in said
    assert out == ""


def test_a_ranking_by_cost_needs_a_price(tmp_path):
    accelerator = {"peak": {"bf16": "1 PFLOP/s"}, "memory": "80 GB", "memory_bandwidth": "3 TB/s"}
    cluster = {"accelerator": accelerator, "num_nodes": 1, "intra_node": "nvlink4"}
    path = tmp_path / "no-price.yaml"
    cheap = {"cluster": cluster, "efficiency": "h100-nemo", "batch": {"global": 8}}
    path.write_text(json.dumps(SMALL | cheap))
    status, _, said = pipesim("plan", path, "--objective", "cost")
    assert status == 2
    assert "price_per_gpu_hour: missing" in said
    status, out, _ = pipesim("plan", path, "--schedules", "1f1b", "--workers", 1, "--top", 1)
    assert status == 0
    assert "USD at" not in out
