"""Collectives alone: closed forms in exact arithmetic, choice of algorithm, measured sweeps."""

import csv
from fractions import Fraction
from pathlib import Path
from statistics import mean, median

import pytest

from pipesim.costs.network.alpha_beta import (
    Ring,
    Shortcut,
    all_gather,
    all_reduce,
    reduce_scatter,
)
from pipesim.costs.network.collective_rates import Group
from pipesim.costs.network.topology import data_ring
from pipesim.scenario import scenario_from_mapping
from pipesim.scenario.hardware import Switches

DATA = Path(__file__).parent / "data"
EXACT = Ring(8, Fraction(100), Fraction(1, 1000), Fraction(1, 50))


def rows(name):
    with (DATA / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def test_closed_forms():
    nbytes = Fraction(800)
    assert all_reduce(nbytes, EXACT).seconds == Fraction(1, 50) + 14 * Fraction(1, 1000) + 14
    half = Fraction(1, 50) + 7 * Fraction(1, 1000) + 7
    assert reduce_scatter(nbytes, EXACT).seconds == all_gather(nbytes, EXACT).seconds == half
    alone = Ring(1, Fraction(100), Fraction(1), Fraction(1))
    assert all(c(nbytes, alone).seconds == 0 for c in (all_reduce, reduce_scatter, all_gather))


def test_the_fastest_algorithm_is_taken_and_a_stated_one_obeyed():
    quick_start = Shortcut("tree", Fraction(1, 1000), Fraction(50))
    ring = Ring(8, Fraction(100), Fraction(1, 100), Fraction(1, 50), shortcuts=(quick_start,))
    assert [all_reduce(Fraction(n), ring).algorithm for n in (1, 10**6)] == ["tree", "ring"]
    stated = Ring(8, Fraction(100), Fraction(1, 100), Fraction(1, 50), 0, (quick_start,), "tree")
    assert all_reduce(Fraction(10**6), stated).algorithm == "tree"
    missing = Ring(8, Fraction(100), Fraction(1, 100), Fraction(1, 50), 0, (), "in-network")
    assert all_reduce(Fraction(10**6), missing).algorithm == "ring"


def test_a_ramp_of_a_message_as_long_as_it_doubles_the_time_of_the_bytes():
    plain, ramped = Ring(2, 100.0, 0.0, 0.0), Ring(2, 100.0, 0.0, 0.0, ramp_s=2.0)
    assert all_reduce(200.0, ramped).seconds == 2 * all_reduce(200.0, plain).seconds
    assert all_reduce(2e10, ramped).seconds == pytest.approx(all_reduce(2e10, plain).seconds, rel=2e-4)


def test_two_levels_are_the_sum_of_their_phases():
    group = Group(32, 4, 100.0, 80.0, 0.0, 0.0)
    nbytes = 1e12
    phases = 2 * nbytes * (7 / 8 / 100 + 3 / 4 / 80)
    assert all_reduce(nbytes, group.ring("two-level")).seconds == pytest.approx(phases)
    assert all_reduce(nbytes, group.ring()).algorithm == "ring"


def test_switches_add_up_only_for_enough_devices():
    switches = Switches(bandwidth="480 GB/s", latency=25e-6, min_members=5)

    def chosen(num_members, num_nodes=1):
        group = Group(num_members, num_nodes, 370e9, 370e9, 3.4e-6, 14e-6, switches=switches)
        return all_reduce(1e9, group.ring()).algorithm

    assert [chosen(4), chosen(8), chosen(32, 4)] == ["ring", "in-network", "ring"]
    assert all_reduce(
        1e9, Group(32, 4, 370e9, 370e9, 0, 0, switches=switches).ring("in-network")
    ).algorithm == ("in-network")


def test_many_nodes_and_few_bytes_take_a_tree():
    group = Group(1024, 128, 370e9, 388e9, 3.4e-6, 14e-6)
    assert [all_reduce(nbytes, group.ring()).algorithm for nbytes in (1e6, 100e9)] == ["tree", "ring"]


MEASURED = {
    "8 A100": ("a100-sxm-80", "ib-hdr"),
    "8 H200": ("h200-sxm", "ib-ndr"),
    "8 B200": ("b200-sxm", "ib-ndr"),
    "4x8 B200": ("b200-sxm", "efa-v4-p6b200-400"),
}


@pytest.mark.parametrize("system", MEASURED)
def test_measured_sweeps_with_the_shipped_presets(system):
    accelerator, inter_node = MEASURED[system]
    points = [row for row in rows("all_reduce_busbw.csv") if row["system"] == system]
    num_gpus, num_nodes = int(points[0]["num_gpus"]), int(points[0]["num_nodes"])
    scenario = scenario_from_mapping(
        {
            "model": "llama3-8b",
            "cluster": {"accelerator": accelerator, "num_nodes": num_nodes, "inter_node": inter_node},
            "parallel": {"pipeline": 1, "data": num_gpus},
            "batch": {"global": num_gpus},
        }
    )
    ring = data_ring(scenario.cluster, scenario.parallel)
    errors = []
    for point in points:
        nbytes = float(point["nbytes"])
        if nbytes >= 256 * 1024:
            busbw = 2 * (num_gpus - 1) / num_gpus * nbytes / all_reduce(nbytes, ring).seconds / 1e9
            errors.append(busbw / float(point["busbw_gb_per_s"]) - 1)
    assert len(errors) == 17
    assert (
        mean(map(abs, errors)) < {"8 A100": 0.08, "8 H200": 0.035, "8 B200": 0.075, "4x8 B200": 0.08}[system]
    )


def test_ring_efficiency_over_many_nodes_without_any_fit():
    """NCCL's own constants, 96 % of the cards' rate: 8.0 % mean error over 77 points, median 5.3 %."""
    errors = []
    for point in rows("ring_efficiency.csv"):
        num_gpus, num_nodes, nbytes = (int(point[key]) for key in ("num_gpus", "num_nodes", "nbytes"))
        group = Group(num_gpus, num_nodes, 388e9 / 0.96, 388e9, 3.4e-6, 14e-6)
        moved = 2 * (num_gpus - 1) / num_gpus * nbytes
        rate = moved / all_reduce(float(nbytes), group.ring("ring")).seconds
        errors.append(rate / (388e9 / 0.96) / float(point["efficiency"]) - 1)
    assert len(errors) == 77
    assert mean(map(abs, errors)) < 0.0805
    assert median(map(abs, errors)) < 0.054


@pytest.mark.parametrize(
    ("accelerator", "link", "mean_limit", "median_limit"),
    [("h100-sxm", "nvlink4-h800", 0.078, 0.024), ("a100-sxm-80", "nvlink3", 0.077, 0.04)],
)
def test_ring_efficiency_where_nvlink_is_the_narrow_part_without_any_fit(
    accelerator, link, mean_limit, median_limit
):
    """SimAI's second table, as SimAI uses it: all-gathers, each rate as a share of the one at 16 GiB.

    The table names no machine. SimAI reads it where NVLink is narrower than the cards (8/7 of its rate to
    8 x 48.5 GB/s): of the machines it knows, A100, A800 and H800 with 400 Gbit/s cards, so both generations
    are tried. Taken for an H100's NVLink, which is wider, the mean error would be 14.7 %.
    """
    points = {
        (int(row["num_gpus"]), int(row["num_nodes"]), float(row["nbytes"])): float(row["efficiency"])
        for row in rows("nvlink_efficiency.csv")
    }
    largest = max(nbytes for *_, nbytes in points)

    def rate(num_gpus, num_nodes, nbytes):
        scenario = scenario_from_mapping(
            {
                "model": "llama3-8b",
                "cluster": {
                    "accelerator": accelerator,
                    "num_nodes": num_nodes,
                    "intra_node": link,
                    "inter_node": "ib-ndr",
                },
                "parallel": {"pipeline": 1, "data": num_gpus},
                "batch": {"global": num_gpus},
            }
        )
        return nbytes / all_gather(nbytes, data_ring(scenario.cluster, scenario.parallel)).seconds

    errors = []
    for (num_gpus, num_nodes, nbytes), efficiency in points.items():
        if nbytes < largest:
            measured = efficiency / points[num_gpus, num_nodes, largest]
            predicted = rate(num_gpus, num_nodes, nbytes) / rate(num_gpus, num_nodes, largest)
            errors.append(predicted / measured - 1)
    assert len(errors) == 50
    assert mean(map(abs, errors)) < mean_limit
    assert median(map(abs, errors)) < median_limit
