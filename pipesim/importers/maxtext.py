"""MaxText's YAML configurations."""

from __future__ import annotations

import math
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, Limit, product
from pipesim.importers.model_names import fields_of, preset_named
from pipesim.importers.overriding import with_overrides
from pipesim.importers.request import Request, read_shape
from pipesim.scenario.loading import read_yaml_mapping
from pipesim.scenario.settings import Settings

_SHAPE = {
    "num_hidden_layers": ("base_num_decoder_layers",),
    "hidden_size": ("base_emb_dim",),
    "num_attention_heads": ("base_num_query_heads",),
    "num_key_value_heads": ("base_num_kv_heads",),
    "intermediate_size": ("base_mlp_dim",),
    "head_dim": ("head_dim",),
    "vocab_size": ("vocab_size",),
    "num_experts": ("num_experts",),
    "num_experts_per_tok": ("num_experts_per_tok",),
    "moe_intermediate_size": ("base_moe_mlp_dim",),
    "num_shared_experts": ("shared_experts",),
    "first_k_dense_replace": ("first_num_dense_layers",),
    "num_nextn_predict_layers": ("mtp_num_layers",),
}
_LATENT = {
    key: (key,)
    for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
}
_EXPERTS = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "num_shared_experts",
    "first_k_dense_replace",
)
_AXES = {
    "tensor": ("tensor", "tensor_sequence", "tensor_transpose"),
    "pipeline": ("pipeline",),
    "context": ("context", "sequence"),
    "expert": ("expert",),
    "fsdp": ("fsdp", "fsdp_transpose"),
    "data": ("data",),
}
LIMITS = (
    Limit(
        lambda facts: facts.pipeline > 1 and (facts.num_microbatches or 0) % facts.pipeline > 0,
        "asks for num_pipeline_microbatches that the pipeline's stages divide",
        "src/maxtext/configs/types.py, 2025",
        "batch.microbatches",
        "--set batch.microbatches=N states others",
    ),
)
_EXCHANGES = {"all_gather": "all-gather", "ring": "ring", "ulysses": "ulysses"}
_OTHER_BLOCKS = ("qwen3_next", "mamba", "gpt3_52k", "simple", "simple_mlp", "default_mlp")
_NEEDED = {
    "num_hidden_layers": "transformer layers, or a model_name that is a preset",
    "hidden_size": "width of the residual stream",
    "num_attention_heads": "query heads",
    "intermediate_size": "width of the MLP",
    "vocab_size": "rows of the embedding",
}


def read(request: Request) -> Facts:
    """Read MaxText's YAML files, base files first; further texts override them by ``key=value``.

    Raises
    ------
    ScenarioError
        Not such a file, a shape that is neither in it nor a preset, or axes that do not multiply to the
        devices.
    """
    path = request.paths[0]
    document = read_yaml_mapping(path)
    inferred: dict[str, str] = {}
    settings = request.settings(with_overrides(document, request, inferred))
    if not any(key in settings for key in ("base_emb_dim", "model_name", "per_device_batch_size")):
        raise ScenarioError(
            "holds neither model_name nor base_emb_dim, as MaxText's files do", file=str(path)
        )
    facts = request.facts("MaxText", settings.text("run_name") if settings.is_known("run_name") else None)
    facts.limits = LIMITS
    facts.inferred |= inferred
    settings.skip("run_name", "base_config")
    facts.model = _model(facts, settings)
    _mesh(facts, settings)
    _pipeline(facts, settings)
    _batch(facts, settings)
    _memory(facts, settings)
    return facts


def _model(facts: Facts, settings: Settings) -> dict[str, Any]:
    name = settings.text("model_name")
    preset = preset_named(name) if name and name != "default" else None
    length = settings.count("max_target_length", sets="model.seq_length")
    if preset is not None and "base_emb_dim" not in settings:
        facts.inferred["model"] = f"preset {preset} (the file has only the name)"
        return {"preset": preset} | ({} if length is None else {"seq_length": length})
    block = settings.text("decoder_block") or "llama2"
    if block in _OTHER_BLOCKS:
        raise settings.refuse(
            "decoder_block", f"found {block!r}, which is not modelled; --ignore decoder_block takes llama2"
        )
    model = read_shape(settings, _SHAPE, **_NEEDED)
    scale = settings.count("global_parameter_scale") or 1
    if scale > 1:
        raise settings.refuse(
            "global_parameter_scale",
            f"found {scale}; state the scaled sizes; --ignore global_parameter_scale",
        )
    if settings.text("attention_type") == "mla":
        model |= read_shape(settings, _LATENT)
        model.pop("head_dim", None)
        model.pop("num_key_value_heads", None)
        if not model.get("q_lora_rank"):
            model.pop("q_lora_rank", None)
    if model.get("num_experts", 1) == 1:
        for key in _EXPERTS:
            model.pop(key, None)
    else:
        model.setdefault("moe_intermediate_size", model["intermediate_size"])
    activations = settings.raw("mlp_activations")[1]
    if length is None:
        length = settings.required(
            "max_target_length", what="tokens of one sequence", sets="model.seq_length"
        )
    return model | {
        "name": name or facts.name,
        "seq_length": length,
        "gated_mlp": not isinstance(activations, list) or len(activations) > 1,
        "tie_word_embeddings": settings.flag("logits_via_embedding"),
        "biases": False,
        "num_learned_positions": 0,
        "source": f"MaxText configuration {facts.files}",
    }


def _mesh(facts: Facts, settings: Settings) -> None:
    """Multiply an axis's devices inside and across slices; one of them may be -1, which takes the rest."""
    sizes: dict[str, int] = {}
    open_axis = None
    for axis, names in _AXES.items():
        sizes[axis] = 1
        for name in names:
            for where in ("ici", "dcn"):
                key = f"{where}_{name}_parallelism"
                if settings.raw(key)[1] == -1:
                    open_axis = axis
                else:
                    sizes[axis] *= settings.count(key) or 1
    if open_axis is None and "ici_fsdp_parallelism" not in settings:
        open_axis = "fsdp"
    facts.tensor, facts.pipeline, facts.context = sizes["tensor"], sizes["pipeline"], sizes["context"]
    facts.sequence_parallel = facts.tensor > 1
    key, strategy = settings.raw("context_parallel_strategy")
    if strategy not in (None, *_EXCHANGES):
        raise settings.refuse(
            key,
            f"found {str(strategy)[:40]!r}; allowed: {', '.join(_EXCHANGES)}; --ignore {key} leaves it out",
        )
    facts.context_exchange = _EXCHANGES[strategy or "all_gather"]
    others, words = product(**{axis: size for axis, size in sizes.items() if size > 1 or axis == "tensor"})
    if open_axis is not None and facts.num_gpus is not None:
        rest, left = divmod(facts.num_gpus, others)
        if left or not rest:
            raise settings.refuse(
                f"ici_{open_axis}_parallelism",
                f"-1 cannot be filled: {words} does not divide {facts.num_gpus} devices; --gpus N states "
                "another number",
            )
        sizes[open_axis] *= rest
        facts.inferred[f"ici_{open_axis}_parallelism"] = f"{rest} (-1: {facts.num_gpus} devices / {others})"
    facts.expert = sizes["expert"]
    facts.expert_tensor = facts.tensor if facts.expert > 1 else None
    if open_axis is None or facts.num_gpus is not None:
        facts.data = sizes["fsdp"] * sizes["data"] * sizes["expert"]
    facts.optimizer = "zero3" if sizes["fsdp"] > 1 or open_axis == "fsdp" else "plain"
    if facts.optimizer == "zero3" and facts.pipeline > 1 and settings.flag("pipeline_fsdp_ag_once"):
        facts.optimizer = "sharded"
    facts.num_mirrors = sizes["data"]
    facts.inferred["optimizer"] = f"{facts.optimizer} (fsdp {sizes['fsdp']} x data {sizes['data']})"


def _pipeline(facts: Facts, settings: Settings) -> None:
    keys = (
        "num_layers_per_pipeline_stage",
        "num_pipeline_repeats",
        "num_pipeline_microbatches",
        "pipeline_parallel_layers",
    )
    per_stage, repeats, microbatches, piped = (
        None if settings.raw(key)[1] == -1 else settings.count(key) for key in keys
    )
    if facts.pipeline == 1:
        facts.microbatches = 1
        return
    layers = int(fields_of(facts.model)["num_hidden_layers"])
    if piped not in (None, layers):
        raise settings.refuse(
            "pipeline_parallel_layers",
            f"found {piped} of {layers} layers; layers outside the pipeline are not modelled; "
            "--ignore pipeline_parallel_layers puts all in it",
        )
    at_once = facts.pipeline * (per_stage or 1)
    if layers % at_once or (repeats is not None and repeats * at_once != layers):
        raise settings.refuse(
            "num_layers_per_pipeline_stage",
            f"{layers} layers are not pipeline {facts.pipeline} x {per_stage or 1} a stage x repeats "
            f"{repeats if repeats is not None else '(whole)'}; --ignore num_pipeline_repeats, or "
            "--set model.num_hidden_layers=N, states others",
        )
    facts.virtual_stages = layers // at_once
    facts.schedule = "looped-bfs" if facts.virtual_stages > 1 else "gpipe"
    facts.inferred["schedule"] = (
        f"{facts.schedule} (MaxText's pipeline runs all forwards, then all backwards, in "
        f"{facts.virtual_stages} repeats)"
    )
    delayed = settings.flag("pipeline_delay_activation_forwarding")
    facts.microbatches = microbatches or facts.pipeline * (1 + delayed)
    if microbatches is None:
        facts.inferred["batch.microbatches"] = (
            f"num_pipeline_microbatches is not stated, and is {'twice ' * delayed}the stages' number"
        )
    if delayed:
        facts.not_used["pipeline_delay_activation_forwarding"] = (
            "true: not modelled, activations are sent on at once"
        )


def _batch(facts: Facts, settings: Settings) -> None:
    """Find the sequences of a microbatch of one replica from those of a device."""
    key, each = settings.raw("per_device_batch_size")
    steps = settings.count("gradient_accumulation_steps") or 1
    if "batch.micro" in facts.stated:
        return
    if not isinstance(each, (int, float)) or isinstance(each, bool) or not 0 < each < 10**6:
        raise settings.refuse(
            key, f"found {str(each)[:40]}; sequences of a device are needed; --set batch.micro=N states them"
        )
    of_replica = each * facts.tensor * facts.pipeline * facts.context
    number = facts.microbatches or 1
    micro = of_replica / number
    if not math.isclose(micro, round(micro)) or round(micro) < 1:
        raise settings.refuse(
            key,
            f"{each} sequences a device, {of_replica:g} of a replica, do not fall into {number} "
            "microbatches; --set batch.micro=N and batch.microbatches=N state them",
        )
    facts.micro, facts.microbatches = round(micro), number * steps
    facts.inferred["batch.micro"] = (
        f"{facts.micro} ({each} a device x {facts.tensor * facts.pipeline * facts.context} devices of a "
        f"replica / {number})"
    )


def _memory(facts: Facts, settings: Settings) -> None:
    policy = settings.text("remat_policy") or "full"
    if policy == "none":
        facts.recompute = "none"
    elif policy.startswith(("minimal", "save_")):
        facts.recompute = "selective"
        facts.not_used["remat_policy"] = f"{policy}: taken as recomputing attention"
    else:
        facts.recompute = "full"
        if policy != "full":
            facts.not_used["remat_policy"] = f"{policy}: taken as recomputing every layer"
    if settings.flag("optimizer_memory_host_offload"):
        facts.offload["optimizer"] = 1.0
        facts.inferred["offload.optimizer"] = "1 (optimizer_memory_host_offload)"
    quantization = settings.text("quantization") or ""
    if "fp8" in quantization:
        facts.precision["compute"] = "fp8"
    else:
        facts.precision["compute"] = "bf16"
        if quantization:
            facts.not_used["quantization"] = f"{quantization}: not modelled, bf16 is taken"
