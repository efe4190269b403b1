"""NeMo's training configurations: the launcher's YAML and Megatron-Bridge's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, Imported, complete, cut_evenly
from pipesim.importers.interpolation import resolved
from pipesim.importers.values import Settings
from pipesim.importers.vocabulary import embedding_rows, tokens_of
from pipesim.scenario.counts import MAX_LAYERS
from pipesim.scenario.loading import read_yaml_mapping

_GATED = ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu")


def read_nemo(path: str | Path, *, num_gpus: int | None = None, overrides: Iterable[str] = ()) -> Imported:
    """Read a NeMo YAML file.

    Parameters
    ----------
    path : str or Path
        With ``model:`` and, in the launcher's form, ``trainer:``; ``${...}`` references and the launcher's
        arithmetic are resolved.
    num_gpus : int, optional
        GPUs of the run, where the file does not say.
    overrides : iterable of str
        ``KEY=VALUE`` each, laid over the scenario.

    Returns
    -------
    Imported
        A scenario that loads.

    Raises
    ------
    ScenarioError
        Not such a file, values that are missing or refer elsewhere, or sizes that cannot be.
    """
    file = str(path)
    document = read_yaml_mapping(path)
    if not isinstance(document.get("model"), dict):
        raise ScenarioError("holds no model: mapping, as NeMo's configurations do", file=file)
    settings = Settings(resolved(document, file=file, mounted="training"), file)
    name = settings.text("run.name") if settings.is_known("run.name") else None
    facts = Facts("NeMo", Path(path).name, name or Path(path).stem, {})
    _cut(facts, settings)
    facts.model = {"name": facts.name} | _model(facts, settings)
    _gpus(facts, settings, num_gpus)
    facts.micro = settings.required(
        "model.micro_batch_size", "train.micro_batch_size", what="sequences of a microbatch"
    )
    facts.global_size = settings.required(
        "model.global_batch_size", "train.global_batch_size", what="sequences of a step"
    )
    _memory(facts, settings)
    facts.not_used |= settings.unused("model", "train", "trainer", "ddp", "comm_overlap")
    return complete(facts, overrides=overrides)


def _cut(facts: Facts, settings: Settings) -> None:
    facts.tensor = settings.count("model.tensor_model_parallel_size") or 1
    facts.pipeline = settings.count("model.pipeline_model_parallel_size") or 1
    facts.context = settings.count("model.context_parallel_size") or 1
    facts.expert = settings.count("model.expert_model_parallel_size") or 1
    facts.expert_tensor = settings.count("model.expert_tensor_parallel_size")
    chunks = settings.count("model.virtual_pipeline_model_parallel_size") or 1
    if chunks > 1 and facts.pipeline == 1:
        facts.not_used["model.virtual_pipeline_model_parallel_size"] = f"{chunks}: no pipeline to interleave"
        chunks = 1
    num_layers = settings.required("model.num_layers", what="transformer layers", maximum=MAX_LAYERS)
    cut_evenly(facts, num_layers, chunks, file=settings.file, key="model.num_layers")
    facts.sequence_parallel = settings.flag("model.sequence_parallel")


def _model(facts: Facts, settings: Settings) -> dict[str, Any]:
    hidden = settings.required("model.hidden_size", what="width of the residual stream")
    activation = settings.text("model.activation") or "gelu"
    gated = settings.flag("model.gated_linear_unit", default=activation in _GATED)
    seq_length = settings.required(
        "model.encoder_seq_length",
        "model.seq_length",
        "dataset.seq_length",
        "model.data.seq_length",
        what="tokens of one sequence",
    )
    learned = (settings.text("model.position_embedding_type") or "learned_absolute") == "learned_absolute"
    positions = settings.count("model.max_position_embeddings") or seq_length
    model: dict[str, Any] = {
        "num_hidden_layers": settings.required("model.num_layers", what="transformer layers"),
        "hidden_size": hidden,
        "num_attention_heads": settings.required("model.num_attention_heads", what="query heads"),
        "vocab_size": _vocabulary(facts, settings),
        "seq_length": seq_length,
        "gated_mlp": gated,
        "tie_word_embeddings": settings.flag("model.share_embeddings_and_output_weights", default=True),
        "biases": settings.flag("model.bias", "model.add_bias_linear", default=True),
        "num_learned_positions": positions if learned else 0,
        "source": f"NeMo configuration {facts.files}",
    }
    for key, setting in (
        ("intermediate_size", "model.ffn_hidden_size"),
        ("num_key_value_heads", "model.num_query_groups"),
        ("head_dim", "model.kv_channels"),
        ("num_experts", "model.num_moe_experts"),
        ("num_experts_per_tok", "model.moe_router_topk"),
        ("moe_intermediate_size", "model.moe_ffn_hidden_size"),
        ("shared_expert_intermediate_size", "model.moe_shared_expert_intermediate_size"),
    ):
        size = settings.count(setting)
        if size is not None:
            model[key] = size
    if "num_experts" in model:
        model.setdefault("num_experts_per_tok", 2)
        model.setdefault("moe_intermediate_size", model.get("intermediate_size", 4 * hidden))
    return model


def _vocabulary(facts: Facts, settings: Settings) -> int:
    stated = settings.count("model.vocab_size", "model.padded_vocab_size")
    if stated is not None:
        return stated
    divisor = settings.count("model.make_vocab_size_divisible_by") or 128
    names = [
        settings.text(key)
        for key in ("model.tokenizer.type", "model.tokenizer.model", "model.tokenizer.vocab_file")
        if settings.is_known(key)
    ]
    return embedding_rows(facts, tokens_of(*names), divisor=divisor)


def _gpus(facts: Facts, settings: Settings, num_gpus: int | None) -> None:
    nodes, devices = settings.count("trainer.num_nodes"), settings.count("trainer.devices")
    facts.gpus_per_node = devices
    facts.num_gpus = num_gpus
    if num_gpus is None and nodes is not None and devices is not None:
        facts.num_gpus = nodes * devices


def _memory(facts: Facts, settings: Settings) -> None:
    optimizer = settings.text("model.optim.name") or ""
    sharded = settings.flag(
        "ddp.use_distributed_optimizer", default=optimizer.startswith(("distributed_", "mcore_distributed_"))
    )
    facts.optimizer = "sharded" if sharded else "plain"
    facts.overlap_gradients = settings.flag(
        "ddp.overlap_grad_reduce", "comm_overlap.overlap_grad_reduce", "model.optim.overlap_grad_sync"
    )
    if facts.overlap_gradients:
        facts.inferred["parallel.overlap_gradients"] = "true (gradients are reduced beside the backward)"
    kind = settings.text("model.activations_checkpoint_granularity", "model.recompute_granularity")
    if kind not in (None, "full", "selective"):
        raise ScenarioError(
            f"found {kind!r}; allowed: full, selective",
            file=settings.file,
            key="model.activations_checkpoint_granularity",
        )
    facts.recompute = kind or "none"
    number = settings.count(
        "model.activations_checkpoint_num_layers", "model.recompute_num_layers", minimum=0
    )
    method = settings.text("model.activations_checkpoint_method", "model.recompute_method")
    if kind == "full" and method == "block" and number is not None:
        facts.not_used["model.activations_checkpoint_num_layers"] = (
            f"{number}: not modelled; every layer is recomputed"
        )
    precision = str(settings.raw("trainer.precision")[1] or "")
    if settings.flag("model.fp8"):
        facts.precision = "fp8"
    elif "bf16" in precision:
        facts.precision = "bf16"
    elif precision.startswith("16"):
        facts.precision = "fp16"
