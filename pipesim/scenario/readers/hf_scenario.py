"""A runnable scenario file around a Hugging Face configuration, its guesses marked as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipesim.scenario.readers.hf import read_hf_config

_GPUS_PER_NODE = 8
_MICROBATCHES_PER_RANK = 8


def hf_scenario_text(path: str | Path) -> str:
    """Write a scenario for a model whose cluster is not known yet.

    Parameters
    ----------
    path : str or Path
        A ``config.json`` that `read_hf_config` accepts.

    Returns
    -------
    str
        YAML with the model's fields, and a cluster, a cut and a batch that run and are commented as
        placeholders to edit.

    Raises
    ------
    ScenarioError
        As for `read_hf_config`.
    """
    model = read_hf_config(path)
    tensor = next(size for size in (8, 4, 2, 1) if _divides(model, size))
    pipeline = next(size for size in (8, 4, 2, 1) if size <= model["num_hidden_layers"])
    num_gpus = tensor * pipeline
    gpus_per_node = min(num_gpus, _GPUS_PER_NODE)
    fields = "\n".join(f"  {key}: {_scalar(value)}" for key, value in model.items())
    return f"""\
# From {_scalar(Path(path).name)}. The configuration knows the model only: check what is marked "placeholder".
name: {_scalar(model["name"])}
model:
{fields}
# seq_length: placeholder; the configuration states the largest one, at most 8192 of it is taken here
# cluster: placeholder; `pipesim presets` lists accelerators and links
cluster:
  accelerator: h100-sxm
  num_nodes: {num_gpus // gpus_per_node}
  gpus_per_node: {gpus_per_node}
  intra_node: nvlink4
  inter_node: ib-ndr
# parallel: placeholder; tensor * pipeline * data must be the number of GPUs
parallel:
  tensor: {tensor}
  pipeline: {pipeline}
  data: 1
  virtual_stages: 1
  sequence_parallel: {_scalar(tensor > 1 and model["seq_length"] % tensor == 0)}
# batch: placeholder; sequences of one optimizer step, and of one microbatch
batch:
  global: {_MICROBATCHES_PER_RANK * pipeline}
  micro: 1
schedule: 1f1b
"""


def _divides(model: dict[str, Any], tensor: int) -> bool:
    heads = model["num_attention_heads"]
    key_value_heads = model.get("num_key_value_heads", heads)
    fits = key_value_heads % tensor == 0 or tensor % key_value_heads == 0
    return bool(fits and heads % tensor == 0 and model["intermediate_size"] % tensor == 0)


def _scalar(value: Any) -> str:
    """Write JSON: every JSON scalar is the same scalar in YAML, whatever its text looks like."""
    return json.dumps(value, ensure_ascii=False)
