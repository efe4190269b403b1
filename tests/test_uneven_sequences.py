"""Packed documents and slices of unlike length: what is uneven, by hand and in the engine."""

from itertools import pairwise

import numpy as np
import pytest

from pipesim.costs.documents import Packing
from pipesim.costs.rows import attention_s
from pipesim.costs.variation import vary
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.executor.models import PipelineModel
from pipesim.ir.actions import Op
from pipesim.prediction import predict, prepare
from pipesim.scenario import scenario_from_mapping
from pipesim.scenario.resolved import Documents


def packed(num_shares=1, num_sequences=1, mean=2000, sigma=1.0):
    documents = Documents(mean=mean, sigma=sigma)
    return Packing(documents, 8, num_sequences, num_shares, is_recomputed=False)


def test_attention_of_documents_is_the_sum_of_their_squares():
    two_and_six = np.array([[[2.0, 6.0]], [[8.0, 0.0]], [[4.0, 4.0]]])
    assert packed().work(two_and_six).tolist() == [(4 + 36) / 64, 1, 32 / 64]
    # Two sequences in one microbatch: the mean of both.
    assert packed(num_sequences=2).work(np.array([[[2.0, 6.0], [8.0, 0.0]]])).tolist() == [(40 + 64) / 128]


def test_the_context_parallel_device_with_the_longest_document_decides():
    # Two devices, chunks of two tokens: 0 and 3 to one, 1 and 2 to the other. One document is even. Of 2 and
    # 6 tokens, twice the attention of chunks is 4; 4, then 16 - 4, then 36 - 16: 24 and 16, of 64 in all.
    assert packed(2).work(np.array([[[8.0, 0.0]]])).tolist() == [1]
    assert packed(2).work(np.array([[[2.0, 6.0]]])).tolist() == [2 * (4 + 20) / 64]


def scenario(**changes):
    mapping = {
        "model": {"preset": "llama3-8b", "seq_length": 32768},
        "cluster": {"accelerator": "h100-sxm", "num_nodes": 4, "inter_node": "ib-ndr"},
        "parallel": {"pipeline": 4, "tensor": 2, "context": 2},
        "batch": {"microbatches": 8},
        "schedule": "1f1b",
        "jitter": {"documents": {"mean": 4000}},
    }
    return scenario_from_mapping({name: value for name, value in (mapping | changes).items() if value})


def test_drawn_documents_fill_sequences_and_their_mean_attention_is_that_of_their_lengths():
    packing = Packing(Documents(mean=4000, sigma=0.0, split="document"), 32768, 4, 1, is_recomputed=False)
    # Lengths alike: 8 documents of 4000 tokens and one of 768.
    factors = packing.attention_factors(np.random.default_rng(0), (2, 3))
    assert factors.shape == (2, 3)
    assert np.allclose(factors, (8 * 4000**2 + 768**2) / 32768**2)
    spread = Packing(Documents(mean=4000, sigma=1.0, split="document"), 32768, 1, 1, is_recomputed=False)
    drawn = spread.attention_factors(np.random.default_rng(1), (20, 100))
    assert drawn.min() > 0
    assert drawn.max() <= 1
    # sum(l^2) / s^2 of short documents is E[l^2] / (E[l] s), with lognormal lengths e^(sigma^2) E[l] / s.
    short = Packing(Documents(mean=40, sigma=1.0, split="document"), 32768, 1, 1, is_recomputed=False)
    mean = short.attention_factors(np.random.default_rng(2), (10, 100)).mean()
    assert mean == pytest.approx(np.e * 40 / 32768, rel=0.05)


def test_documents_change_attention_alone_and_each_replica_has_its_own():
    asked = scenario()
    prepared = prepare(asked)
    lowered = prepared.laid.lowered(receive="early", tied_embedding=False)
    chosen = {"num_replicas": 2, "seed": 3, "packing": Packing.of(asked)}
    durations = vary(lowered, prepared.costs, asked.jitter, **chosen).durations
    attention = attention_s(lowered, prepared.costs, is_recomputed=False)
    plain = prepare(scenario(jitter=None)).costs
    base = plain.durations(lowered.op, lowered.stage)
    computing = np.isin(lowered.op, (Op.F, Op.B))
    factors = ((durations - base) / np.where(attention > 0, attention, 1) + 1)[:, computing]
    for replica in range(2):
        of_first = factors[replica][lowered.microbatch[computing] == 0]
        # Every stage, forward and backward, has the same documents.
        assert np.allclose(of_first, of_first[0])
        assert 0 < of_first[0] <= 1.5
    assert not np.allclose(factors[0], factors[1])


def test_a_step_with_packed_documents_is_uneven_and_quicker_than_one_document():
    uneven, even = predict(scenario()), predict(scenario(jitter=None))
    assert uneven.step_time_s < even.step_time_s
    assert uneven.metrics.bubble_ratio > even.metrics.bubble_ratio
    by_document = predict(scenario(jitter={"documents": {"mean": 4000, "split": "document"}}))
    assert by_document.step_time_s < uneven.step_time_s
    with pytest.raises(ScenarioError, match="needs a transformer"):
        predict(
            scenario_from_mapping(
                {
                    "parallel": {"pipeline": 2},
                    "batch": {"microbatches": 2},
                    "costs": {"forward": 1, "backward": 2},
                    "jitter": {"documents": {"mean": 4000}},
                }
            )
        )


def sliced(lengths, **changes):
    schedule = {"name": "seq1f1b", "num_slices": 4, "slice_lengths": lengths}
    return scenario(jitter=None, schedule=schedule, parallel={"pipeline": 4, "tensor": 8}, **changes)


def test_balanced_slices_take_equal_time_and_long_ones_come_first():
    prepared = prepare(sliced("balanced"))
    shares = prepared.schedule.slice_shares
    assert sum(shares) == pytest.approx(1)
    assert list(shares) == sorted(shares, reverse=True)
    costs = prepared.costs
    attention, overhead = (
        sum(parts[name].sum() for parts in (costs.forward_parts_s, costs.backward_parts_s))
        for name in ("attention", "overhead")
    )
    even = costs.forward_s.sum() + costs.backward_s.sum() - attention - overhead
    ends = np.cumsum([0, *shares])
    work = [even * (b - a) + attention * (b**2 - a**2) for a, b in pairwise(ends)]
    assert np.allclose(work, (even + attention) / 4)
    times = {name: predict(sliced(name)) for name in ("even", "balanced")}
    assert times["balanced"].step_time_s < times["even"].step_time_s
    assert times["balanced"].metrics.comm_bytes == pytest.approx(times["even"].metrics.comm_bytes)


def test_engine_and_compiled_agree_on_uneven_slices_and_stated_lengths_are_shares():
    stated = sliced([4, 3, 2, 1])
    engine, compiled = predict(stated), predict(stated, timing="fast")
    assert engine.schedule.slice_shares == (0.4, 0.3, 0.2, 0.1)
    assert compiled.step_time_s == pytest.approx(engine.step_time_s, rel=1e-9)
    sent = engine.events.select(engine.events.op == Op.SEND_F)
    sizes = {part: set(sent.nbytes[sent.slice == part]) for part in range(4)}
    whole = prepare(stated).costs.boundary_bytes[0]
    assert [sizes[part].pop() / whole for part in range(4)] == pytest.approx([0.4, 0.3, 0.2, 0.1])
    for wrong in ([1, 2, 3], [1, 2, 3, float("inf")], [1, 2, 3, "4"], "long"):
        with pytest.raises(ScheduleError, match="slice_lengths to be even, balanced, or a positive number"):
            predict(sliced(wrong))


def test_all_slices_of_a_microbatch_hold_the_same_and_the_executor_cuts_where_stated():
    uneven, even = (predict(sliced(lengths, batch={"microbatches": 1})) for lengths in ([7, 1, 1, 1], "even"))
    assert uneven.metrics.peak_memory_bytes == pytest.approx(even.metrics.peak_memory_bytes)
    torch = pytest.importorskip("torch")
    model = PipelineModel([], lambda _: None, lambda *_: None, sequence_dim=1)
    cut = model.cut(torch.zeros(2, 10), 4, (0.4, 0.3, 0.2, 0.1))
    assert [part.shape[1] for part in cut] == [4, 3, 2, 1]
