"""Damaged files, odd overrides and odd arguments: done or refused in one message, never a traceback."""

import os
from pathlib import Path
from random import Random

import pytest
from corruptions import GPT3, NUMBERS, TEACHING, TEXTS, check, damaged, kinds
from hypothesis import given, settings
from hypothesis import strategies as st

SLOW = ("measured steps", "published table", "table of a sweep", "table of a sweep, memory")
"""Kinds of which one example takes long; `benchmarks/hostile_use.py` has 2,000 of each kind."""
FEW = settings(max_examples=120, derandomize=True, deadline=None, database=None)
KEYS = (
    *(
        "parallel.pipeline",
        "parallel.tensor",
        "parallel.data",
        "batch.microbatches",
        "batch.global",
        "schedule",
    ),
    *("batch.micro", "costs.forward", "costs.p2p", "costs", "name", "seed", "network.mode", "network.p2p"),
    *("jitter.devices", "jitter.slow_ranks", "layers", "model.num_hidden_layers", "cluster.num_nodes"),
    *(
        "optimizer",
        "recompute",
        "efficiency.gemm",
        "reliability.days",
        "schedule.csv",
        "model",
        "",
        ".",
        "a.b",
    ),
)
VERBS = (
    *(("simulate",), ("compare", "--schedules", "1f1b,gpipe"), ("goodput",), ("schedule", "check")),
    *(("schedule", "show", "1f1b"), ("presets",), ("schedule", "list"), ("plot", "gantt"), ("import", "hf")),
)
OPTIONS = (
    *("--ranks", "--microbatches", "--forward", "--backward", "--p2p", "--chunks", "--set", "--schedules"),
    *("--json", "--repeats", "--slow-rank", "--option", "--framework", "--plot", "--trace", "-o", "--help"),
)
values = st.one_of(
    st.sampled_from(NUMBERS + TEXTS), st.integers().map(str), st.floats().map(str), st.text(max_size=20)
)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Where everything is written: odd names of outputs too."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("corruptions")
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def fast_kinds(folder):
    return {name: kind for name, kind in kinds(folder).items() if name not in SLOW}


def test_whole_files_are_accepted(fast_kinds):
    for name, kind in fast_kinds.items():
        for source in kind.sources:
            assert check(kind.arguments(source)) == 0, name


@FEW
@given(name=st.integers(0, 999), seed=st.integers(0, 2**32))
def test_damaged_files(fast_kinds, folder, name, seed):
    random = Random(seed)
    kind = list(fast_kinds.values())[name % len(fast_kinds)]
    source = random.choice(kind.sources)
    path = folder / ("damaged" + "".join(source.suffixes))
    path.write_bytes(damaged(source.read_bytes(), random))
    check(kind.arguments(path))


@FEW
@given(key=st.sampled_from(KEYS), value=values, scenario=st.sampled_from((TEACHING, GPT3)))
def test_odd_overrides(key, value, scenario):
    check(("simulate", scenario, "--set", f"{key}={value}"))


@FEW
@given(
    verb=st.sampled_from(VERBS),
    words=st.lists(st.one_of(st.sampled_from((*OPTIONS, str(TEACHING))), values), max_size=6),
)
def test_odd_arguments(verb, words):
    check((*verb, *(word for word in words if word == str(TEACHING) or not word.startswith(("/", ".")))))
