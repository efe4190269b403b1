"""One scenario, one answer: every verb, and Python, gives what `simulate --json` prints."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pipesim
from pipesim.cli.app import app
from pipesim.errors import PipesimError
from pipesim.evidence.calibration.step_times import calibrate_steps, read_steps
from pipesim.schedules import Shape, generate

BASE = {
    "name": "road",
    "model": {
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "intermediate_size": 8192,
        "vocab_size": 51200,
        "seq_length": 2048,
    },
    "cluster": {"accelerator": "a100-sxm-80", "num_nodes": 2, "inter_node": "ib-hdr"},
    "parallel": {"pipeline": 4, "tensor": 2},
    "batch": {"global": 32, "micro": 1},
}
TIMES = {
    "name": "stated",
    "parallel": {"pipeline": 4},
    "batch": {"microbatches": 8},
    "costs": {"forward": "1 s", "backward": "2 s", "p2p": "0.1 s", "activations": "1 GB"},
}
EXPERTS = {
    "model.num_experts": 8,
    "model.num_experts_per_tok": 2,
    "model.moe_intermediate_size": 4096,
    "parallel.expert": 2,
    "parallel.sequence_parallel": True,
}
FEATURES = {
    "plain": {},
    "blocking": {"network.p2p": "blocking"},
    "send-blocking": {"network.p2p": "send-blocking"},
    "slow ranks": {"jitter": {"slow_ranks": {"1": 1.2}}},
    "jitter": {"jitter": {"compute": 0.03, "devices": 0.02}, "seed": 3},
    "overlapped gradients": {"parallel.overlap_gradients": True},
    "zero1": {"optimizer": "sharded"},
    "zero2": {"optimizer": "zero2"},
    "zero3": {"optimizer": "zero3"},
    "MoE": EXPERTS,
    "context parallel": {"parallel.context": 2},
    "one card a node": {"cluster.nics_per_node": 1},
    "uneven layers": {"layers": [3, 4, 5, 4]},
}
SCHEDULES = ("1f1b", "zb-h1", "interleaved-1f1b", "dualpipe", "chimera", "pipedream")
ONE_STAGE = ("1f1b", "zb-h1", "chimera", "pipedream", "dualpipe")


def combinations():
    for feature, changes in FEATURES.items():
        for schedule in SCHEDULES:
            if feature == "uneven layers" and schedule not in ONE_STAGE:
                continue
            yield feature, BASE, changes, schedule
    for schedule in ("1f1b", "gpipe", "zb-v", "interleaved-1f1b"):
        for feature, changes in (("overlapped", {}), ("blocking", {"network.p2p": "blocking"})):
            yield f"stated times {feature}", TIMES, changes, schedule


def scenario_of(base, changes, schedule):
    chunks = 2 if schedule == "interleaved-1f1b" else 1
    return pipesim.Scenario.of(base).with_(
        {**changes, "schedule": schedule, "parallel.virtual_stages": chunks}
    )


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, PipesimError):
        return str(result.exception)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def numbers(document):
    return [document[key] for key in ("step_time_s", "bubble_ratio", "peak_memory_bytes")]


ASKED = {
    f"{feature}, {schedule}": (base, changes, schedule) for feature, base, changes, schedule in combinations()
}


@pytest.fixture
def scenario(request):
    return scenario_of(*ASKED[request.param])


def test_there_are_enough_combinations():
    assert len(ASKED) >= 60


@pytest.mark.parametrize("scenario", ASKED, indirect=True)
def test_every_verb_says_what_simulate_says(scenario, tmp_path):
    file, table = tmp_path / "one.yaml", tmp_path / "rows.csv"
    scenario.save(file)
    expected = run("simulate", file, "--json")
    said = {"python": scenario.predict().to_dict()}
    name = scenario.schedule.name
    (said["compare"],) = run("compare", file, "--schedules", name, "--json")["results"]
    seed = f"seed={scenario.seed}"
    swept = run("sweep", file, "-o", table, "--vary", seed, "--workers", "1", "--json")
    (said["sweep"],) = swept["rows"]
    said["pipesim.sweep"] = pipesim.sweep(scenario, {"seed": [scenario.seed]}).rows[0]
    said["pipesim.compare"] = pipesim.compare(scenario, schedules=[name]).results[0].to_dict()
    for verb, document in said.items():
        assert numbers(document) == pytest.approx(numbers(expected), rel=1e-9), verb
    goodput = run("goodput", file, "--json")
    assert goodput["step_time_s"] == pytest.approx(expected["step_time_s"], rel=1e-9)
    assert goodput["step_time_band_s"] == expected["step_time_band_s"]
    with table.open() as rows:
        assert float(next(csv.DictReader(rows))["step_time_s"]) == pytest.approx(
            expected["step_time_s"], rel=1e-9
        )


@pytest.mark.parametrize("scenario", list(ASKED)[::30], indirect=True)
def test_the_page_says_what_simulate_says(scenario, tmp_path):
    """Its pictures take a second each, so few are drawn."""
    file, name = tmp_path / "one.yaml", scenario.schedule.name
    scenario.save(file)
    (found,) = run("report", file, "--schedules", name, "-o", tmp_path / "r.html", "--json")["results"]
    assert numbers(found) == pytest.approx(numbers(run("simulate", file, "--json")), rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "schedule"),
    [
        ({"network.p2p": "blocking"}, "zb-h1"),
        ({"jitter": {"slow_ranks": {"1": 1.3}}}, "1f1b"),
        ({}, "dualpipe"),
        ({}, "csv"),
    ],
    ids=["blocking zb-h1", "slow rank", "dualpipe", "csv"],
)
def test_times_that_simulate_made_calibrate_to_nothing(changes, schedule, tmp_path):
    """Factors 1 and no overhead; what is written loads and gives those times."""
    batches = (32, 64, 128)
    if schedule == "csv":
        pipesim_csv = tmp_path / "order.csv"
        pipesim_csv.write_text(generate("zb-h1", Shape(4, 1, 16)).to_csv())
        batches = (32,)
        schedule = {"csv": str(pipesim_csv)}
    scenario = pipesim.Scenario.of(BASE).with_({**changes, "schedule": schedule})
    scenario.save(tmp_path / "s.yaml")
    lines = ["batch.global,step_time"]
    for batch in batches:
        step_s = run("simulate", tmp_path / "s.yaml", "--set", f"batch.global={batch}", "--json")[
            "step_time_s"
        ]
        lines.append(f"{batch},{step_s!r}")
    (tmp_path / "steps.csv").write_text("\n".join(lines) + "\n")
    found = calibrate_steps(read_steps(tmp_path / "steps.csv", tmp_path / "s.yaml"))
    for one in found.found:
        neutral = 0.0 if one.quantity.name == "step_overhead" else 1.0
        assert one.value == pytest.approx(neutral, abs=1e-6), one.quantity.name
    out = tmp_path / "calibrated.yaml"
    document = run(
        *("calibrate", "--measured", tmp_path / "steps.csv", "--scenario", tmp_path / "s.yaml"),
        *("-o", out, "--json"),
    )
    for row, batch in zip(document["rows"], batches, strict=True):
        again = run("simulate", out, "--set", f"batch.global={batch}", "--json")
        assert again["step_time_s"] == pytest.approx(row["predicted_step_time_s"], rel=1e-9)
        assert again["step_time_s"] == pytest.approx(row["measured_step_time_s"], rel=1e-6)


def test_no_module_but_the_road_chooses_what_times_a_scenario():
    root = Path(pipesim.__file__).parent
    for name in ("costs.copies", "costs.variation", "timing.engine"):
        users = {
            file.relative_to(root).parts[0]
            for file in root.rglob("*.py")
            if f"pipesim.{name}" in file.read_text() and not file.is_relative_to(root / name.split(".")[0])
        }
        # The search counts the room that a placement leaves, and auto the memory of the order found.
        assert users <= {"prediction", "__init__.py", "search", "schedules"}, name
