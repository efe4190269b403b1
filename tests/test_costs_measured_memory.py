"""Peak memory of Megatron-LM on 8 B200, measured by SimuMax, against the model; nothing is fitted to it.

MooreThreads/SimuMax@4dcaae51, docs/b200/b200_release_v1.2_summary.json: the allocator's peak in MiB.
"""

import numpy as np
import pytest

from pipesim.costs import build_costs
from pipesim.scenario import scenario_from_mapping

LLAMA_70B = {
    "num_hidden_layers": 12,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
}
LLAMA_405B = {
    "num_hidden_layers": 4,
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_attention_heads": 128,
}
# Shape, tensor, pipeline, context, sequence, MiB on each pipeline rank.
DENSE = [
    (LLAMA_70B, 4, 1, 1, 4096, [40010]),
    (LLAMA_70B, 2, 1, 1, 4096, [62136]),
    (LLAMA_405B, 1, 2, 1, 4096, [88689, 89173]),
    (LLAMA_405B, 2, 1, 1, 4096, [83550]),
    (LLAMA_405B, 4, 1, 1, 4096, [54158]),
    (LLAMA_405B, 8, 1, 1, 4096, [39500]),
]
CONTEXT = [
    (LLAMA_70B, 1, 1, 8, 32768, [107015]),
    (LLAMA_405B, 1, 1, 8, 32768, [142557]),
    (LLAMA_70B, 2, 1, 4, 131072, [115372]),
    (LLAMA_70B, 1, 1, 8, 131072, [151538]),
    (LLAMA_405B, 2, 1, 4, 131072, [120962]),
]


def errors(row):
    """Signed error on each rank; rank r of p keeps p - r microbatches in flight."""
    shape, tensor, pipeline, context, sequence, measured_mib = row
    kind = {"num_key_value_heads": 8, "vocab_size": 128256, "gated_mlp": True, "seq_length": sequence}
    table = build_costs(
        scenario_from_mapping(
            {
                "model": shape | kind,
                "cluster": {"accelerator": "b200-sxm", "num_nodes": 1},
                "efficiency": "b200-megatron",
                "parallel": {
                    "pipeline": pipeline,
                    "tensor": tensor,
                    "context": context,
                    "sequence_parallel": tensor > 1,
                },
                "batch": {"microbatches": 4},
                "optimizer": "sharded",
            }
        ),
        num_chunks=1,
    )
    in_flight = np.arange(pipeline, 0, -1)
    used = table.weight_bytes + table.gradient_bytes + table.optimizer_bytes + table.working_bytes
    used += in_flight * table.activation_bytes
    return used / 2**20 / np.array(measured_mib) - 1


@pytest.mark.parametrize("row", DENSE, ids=lambda row: f"{row[0]['num_hidden_layers']} layers tp{row[1]}")
def test_dense(row):
    assert np.abs(errors(row)).max() < 0.011


def test_dense_on_the_whole():
    assert np.abs(np.concatenate([errors(row) for row in DENSE])).mean() < 0.006


@pytest.mark.parametrize("row", CONTEXT, ids=lambda row: f"{row[0]['num_hidden_layers']} layers cp{row[3]}")
def test_context_parallel(row):
    """Those runs exchange heads in place of keys and values, and keep the attention's output once more."""
    assert np.abs(errors(row)).max() < 0.03
