"""Cost tables as files, and the one way from a scenario to a table."""

import json
from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest

from pipesim.costs import CostTable, build_costs
from pipesim.costs.direct import direct_costs
from pipesim.costs.file import read_cost_table, write_cost_table
from pipesim.costs.network.alpha_beta import LinkCost, PointToPoint, Ring
from pipesim.errors import ScenarioError
from pipesim.scenario import load_scenario
from pipesim.scenario.resolved import (
    Batch,
    DirectCosts,
    LayerSplit,
    Parallel,
    Precision,
    ResolvedScenario,
    ScheduleChoice,
)

STATED = DirectCosts(
    forward_s=(0.001, 1e-05, 1 / 3, 2.5e17),
    backward_s=2.0,
    input_gradient_s=None,
    weight_gradient_s=None,
    p2p_latency_s=1e-5,
    p2p_bytes_per_s=None,
    boundary_bytes=64e6,
    overlapped_pair_s=2.5,
    gradient_sync_s=0.5,
    optimizer_s=0.25,
    activation_bytes=8e9,
)


def full_table():
    table = direct_costs(STATED, num_ranks=4, num_chunks=1)
    return replace(
        table,
        gradient_bytes=np.array([1e9, 2e9, 3e9, 4e9]),
        weight_bytes=np.array([0.5e9, 1e9, 1.5e9, 2e9]),
        point_to_point=PointToPoint(
            LinkCost(1e-5, 240e9), LinkCost(2e-5, None), 4, 8, pair_rates=((0, 1, 120e9),)
        ),
        gradient_ring=Ring(4, 23.5e9, 14e-6, 8.4e-6),
        gradient_collective="reduce_scatter",
        tied_embedding_bytes=1e6,
        tied_embedding_ring=Ring(2, 23.5e9, 14e-6, 8.4e-6),
        deferred_bytes=np.array([1e9, 2e9, 1e9, 5e8]),
        memory_limit_bytes=80e9,
        tokens_per_step=1e6,
        model_flops_per_step=1e18,
        num_gpus=16,
        peak_flops_per_gpu=312e12,
        price_usd_per_gpu_hour=1.29,
        forward_parts_s={"gemm": table.forward_s / 2, "head": table.forward_s / 2},
        provenance={"costs": "measured: run.json, 3 steps"},
    )


def assert_same(left, right):
    for item in fields(CostTable):
        one, other = getattr(left, item.name), getattr(right, item.name)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
            assert one.tolist() == other.tolist(), item.name
        elif item.name.endswith("parts_s"):
            assert {key: part.tolist() for key, part in one.items()} == {
                key: part.tolist() for key, part in other.items()
            }
        else:
            assert one == other, item.name


@pytest.mark.parametrize("name", ["costs.yaml", "costs.json"])
def test_round_trip_loses_no_bit(tmp_path, name):
    path = tmp_path / name
    for table in (full_table(), direct_costs(STATED, num_ranks=2, num_chunks=2)):
        write_cost_table(table, path)
        assert_same(read_cost_table(path), table)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_fractions_come_back_exact(tmp_path):
    path = tmp_path / "costs.yaml"
    exact = direct_costs(replace(STATED, forward_s=Fraction(1, 3)), num_ranks=3, num_chunks=1)
    write_cost_table(exact, path)
    back = read_cost_table(path)
    assert_same(back, exact)
    assert type(back.backward_s[0]) is Fraction


LINKS = {
    "intra": {"latency_s": 0, "bytes_per_s": None},
    "inter": {"latency_s": 0, "bytes_per_s": None},
    "gpus_per_rank": 1,
    "gpus_per_node": 8,
}
MINIMAL = {
    "format": "pipesim cost table 1",
    "forward_s": [1, 1],
    "backward_s": [2, 2],
    "input_gradient_s": [1, 1],
    "weight_gradient_s": [1, 1],
    "point_to_point": LINKS,
}
RING = {"num_members": 2, "bytes_per_s": 1.0, "step_latency_s": 0, "base_latency_s": 0}


def write(path, **changes):
    content = {key: value for key, value in (MINIMAL | changes).items() if value is not None}
    path.write_text(json.dumps(content))
    return path


def test_what_a_file_leaves_out_is_zero_or_unknown(tmp_path):
    table = read_cost_table(write(tmp_path / "costs.json"))
    assert table.activation_bytes.tolist() == table.optimizer_s.tolist() == [0.0, 0.0]
    assert table.gradient_ring is table.memory_limit_bytes is table.overlapped_pair_s is None


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"format": "something else"}, "format", "not a cost table"),
        ({"format": None}, "format", "not a cost table"),
        ({"forwards": [1, 1]}, "forwards", "unknown key; did you mean 'forward_s'"),
        ({"backward_s": None}, "backward_s", "missing"),
        ({"point_to_point": None}, "point_to_point", "missing"),
        ({"forward_s": []}, "forward_s", "one entry a stage"),
        ({"forward_s": 1}, "forward_s", "one entry a stage"),
        ({"backward_s": [1, 2, 3]}, "backward_s", "found 3 entries; .*forward_s has 2"),
        ({"backward_s": [1, -2]}, r"backward_s[1]", "found -2; it cannot be negative"),
        ({"backward_s": [1, "2 s"]}, r"backward_s[1]", "found '2 s'; a finite number"),
        ({"backward_s": [1, float("nan")]}, r"backward_s[1]", "a finite number"),
        ({"backward_s": [1, float("inf")]}, r"backward_s[1]", "a finite number"),
        ({"backward_s": [1, "1/0"]}, r"backward_s[1]", "a finite number"),
        ({"backward_s": [1, True]}, r"backward_s[1]", "found true"),
        ({"num_gpus": 1.5}, "num_gpus", "a whole number"),
        ({"num_gpus": 10**400}, "num_gpus", "a smaller whole number|at most"),
        ({"released_at_input_gradient": 0.5}, "released_at_input_gradient", "unknown key"),
        ({"gradient_collective": "tree"}, "gradient_collective", "allowed: all_reduce, reduce_scatter"),
        ({"gradient_ring": [1]}, "gradient_ring", "a mapping of keys is needed"),
        ({"gradient_ring": RING | {"bytes_per_s": 0}}, "gradient_ring.bytes_per_s", "above zero"),
        (
            {"gradient_ring": RING | {"color": 1}},
            "gradient_ring.color",
            "unknown key .allowed here: num_members",
        ),
        ({"point_to_point": {"intra": LINKS["intra"]}}, "point_to_point.inter", "missing"),
        ({"point_to_point": {"intra": {}}}, "point_to_point.intra.latency_s", "missing"),
        (
            {"point_to_point": LINKS | {"inter": {"latency_s": 0}}},
            "point_to_point.inter.bytes_per_s",
            "missing",
        ),
        (
            {"point_to_point": {key: LINKS[key] for key in LINKS if key != "gpus_per_node"}},
            "point_to_point.gpus_per_node",
            "missing",
        ),
        ({"boundary_bytes": [10**400, 0]}, "boundary_bytes[0]", "a finite number"),
        ({"provenance": "me"}, "provenance", "a mapping of keys is needed"),
        (
            {"gradient_ring": RING | {"shortcuts": [{"algorithm": "tree", "latency_s": 0, "rate": 1}]}},
            "gradient_ring.shortcuts[0].rate",
            "unknown key.*allowed here: algorithm, latency_s, bytes_per_s",
        ),
        (
            {"point_to_point": LINKS | {"pair_rates": [[0, 1]]}},
            "point_to_point.pair_rates[0]",
            "rank, rank, bytes per second",
        ),
        (
            {"point_to_point": LINKS | {"pair_rates": [[-1, 1, 5]]}},
            "point_to_point.pair_rates[0][0]",
            "at least 0",
        ),
        ({"forward_parts_s": {"gemm": [1]}}, "forward_parts_s.gemm", "found 1 entries"),
    ],
)
def test_bad_files_name_the_key(tmp_path, changes, key, words):
    path = write(tmp_path / "costs.json", **changes)
    with pytest.raises(ScenarioError, match=words) as caught:
        read_cost_table(path)
    assert (caught.value.file, caught.value.key) == (str(path), key)


def test_writing_into_a_missing_folder_is_one_clear_message(tmp_path):
    path = tmp_path / "missing" / "costs.yaml"
    with pytest.raises(ScenarioError, match="cannot be written: No such file or directory"):
        write_cost_table(full_table(), path)


def scenario(**changes):
    base = ResolvedScenario(
        name="test",
        parallel=Parallel(4, 2, 3, 1, False, None),
        batch=Batch(8, 1, None),
        schedule=ScheduleChoice("1f1b"),
        model=None,
        cluster=None,
        costs=None,
        costs_file=None,
        layers=LayerSplit("even"),
        recompute="none",
        optimizer="plain",
        efficiency=None,
        precision=Precision("bf16", 2, 4, 12),
        seed=0,
        price_usd_per_gpu_hour=1.5,
        file=None,
    )
    return replace(base, **changes)


def test_stated_costs_get_the_devices_and_their_price():
    table = build_costs(scenario(costs=STATED), num_chunks=1)
    assert table.forward_s.tolist() == list(STATED.forward_s)
    assert (table.num_gpus, table.price_usd_per_gpu_hour, table.tokens_per_step) == (24, 1.5, None)


def test_cost_file_lies_beside_the_scenario(tmp_path):
    write_cost_table(full_table(), tmp_path / "costs.yaml")
    case = scenario(costs_file="costs.yaml", file=str(tmp_path / "s.yaml"))
    table = build_costs(case, num_chunks=1)
    assert table.forward_s.tolist() == list(STATED.forward_s)
    assert (table.num_gpus, table.memory_limit_bytes) == (24, 80e9)
    with pytest.raises(
        ScenarioError, match=r"has 4 stages, the pipeline has 8 \(4 ranks x 2 chunks\)"
    ) as caught:
        build_costs(case, num_chunks=2)
    assert caught.value.key == "costs.file"


def test_a_cost_table_given_as_a_scenario_is_recognised(tmp_path):
    write_cost_table(full_table(), tmp_path / "costs.yaml")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(tmp_path / "costs.yaml")
    assert str(caught.value) == (
        f"{tmp_path / 'costs.yaml'}: is a cost table, not a scenario; "
        f"name it in a scenario as costs: {{file: costs.yaml}}"
    )
