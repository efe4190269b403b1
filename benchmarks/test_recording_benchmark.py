"""What recording every action costs: steps with and without it, in turn on the same processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from pipesim.executor import RankPool, TransformerWorkload
from pipesim.executor.job import Job
from pipesim.ir import lower
from pipesim.scenario.resolved import Transformer
from pipesim.schedules import Shape, generate

MOST_SLOWER = 0.01
ROUNDS, STEPS = 8, 6

MODEL = Transformer(
    name="4 layers of 192",
    num_hidden_layers=4,
    hidden_size=192,
    num_attention_heads=3,
    num_key_value_heads=3,
    head_dim=64,
    intermediate_size=768,
    vocab_size=512,
    seq_length=256,
    gated_mlp=False,
    tie_word_embeddings=False,
    biases=True,
    num_learned_positions=256,
    source="this benchmark",
)


def test_recording_slows_a_step_by_less_than_a_hundredth(benchmark: Any) -> None:
    schedule = lower(generate("1f1b", Shape(2, 1, 8)))
    workload = TransformerWorkload(MODEL)
    step_s: dict[bool, list[float]] = {True: [], False: []}
    with RankPool(2) as pool:

        def one_round() -> None:
            for record in (True, False):
                job = Job(schedule, workload, "cpu", num_steps=STEPS, warmup=2, record=record)
                results = pool.run(job)
                step_s[record] += np.max([result.step_s for result in results], axis=0).tolist()

        benchmark.pedantic(one_round, rounds=ROUNDS)
    with_record, without = (min(step_s[record]) for record in (True, False))
    benchmark.extra_info.update(with_record_s=with_record, without_s=without)
    assert len(step_s[True]) == len(step_s[False]) == ROUNDS * STEPS
    assert with_record / without < 1 + MOST_SLOWER
