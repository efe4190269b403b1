"""Shared wires send a schedule to the engine where they change its numbers, and nowhere else."""

from random import Random

import numpy as np
import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import PipesimError
from pipesim.ir.actions import RECEIVES
from pipesim.prediction import predict
from pipesim.scenario import scenario_from_mapping

SMALL = {
    "model": {
        "num_hidden_layers": 8,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "vocab_size": 32000,
        "seq_length": 2048,
    },
}


def drawn(random):
    """Draw a scenario: two or four nodes of four, on which replicas, stages and shards share cards."""
    num_nodes = random.choice([2, 4])
    pipeline, tensor = random.choice([2, 4]), random.choice([1, 2, 4])
    data = num_nodes * 4 // (pipeline * tensor)
    schedule = random.choice(["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v"])
    two_chunks = schedule in ("interleaved-1f1b", "zb-v", "dualpipe-v")
    return SMALL | {
        "model": SMALL["model"] | {"tie_word_embeddings": random.random() < 0.3},
        "cluster": {
            "accelerator": "h100-sxm",
            "num_nodes": num_nodes,
            "gpus_per_node": 4,
            "intra_node": "nvlink4",
            "inter_node": random.choice(["ib-ndr", "roce-100"]),
            "nics_per_node": random.choice([1, 2, 4]),
        },
        "parallel": {
            "pipeline": pipeline,
            "tensor": tensor,
            "data": max(1, data),
            "virtual_stages": 2 if two_chunks else 1,
        },
        "batch": {"global": 2 * pipeline * max(1, data) * random.choice([1, 2]), "micro": 1},
        "schedule": schedule,
        "optimizer": random.choice(["plain", "sharded", "zero2"]),
        "network": {"mode": random.choice(["fair", "fair", "fair", "fifo"])},
    }


@examples(60)
@given(st.randoms(use_true_random=False))
def test_the_engine_is_asked_exactly_where_it_gives_other_numbers(random):
    mapping = drawn(Random(random.random()))
    try:
        scenario = scenario_from_mapping(mapping)
        alone = predict(scenario, timing="compiled")
    except PipesimError:
        return
    engine, fast = predict(scenario), predict(scenario, timing="fast")
    assert fast.step_time_s == pytest.approx(engine.step_time_s, rel=1e-9)
    if fast.timed_by == "compiled":
        for column in ("start_s", "end_s"):
            found, expected = (getattr(one.events, column)[one.events.compute] for one in (fast, engine))
            assert np.allclose(found, expected, rtol=1e-9, atol=0)
    elif scenario.network.mode == "fair" and fast.costs.shard_exchange is None:
        kept = engine.events.select(~np.isin(engine.events.op, RECEIVES))
        assert not np.allclose(kept.end_s, alone.events.end_s, rtol=1e-12, atol=0)
