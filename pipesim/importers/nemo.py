"""NeMo's training configurations: the launcher's YAML, Megatron-Bridge's YAML and recipes, and tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.importers.adapters import read_adapters
from pipesim.importers.bridge_workload import has_workloads, workload_settings
from pipesim.importers.facts import Facts, cut_evenly
from pipesim.importers.interpolation import resolved
from pipesim.importers.megatron import LIMITS
from pipesim.importers.megatron_cut import cut_by_layout, layout_text
from pipesim.importers.mlperf import accelerator_of, environment_of, mlperf_document, unread
from pipesim.importers.model_names import ACCELERATORS, fields_of, preset_named
from pipesim.importers.nemo_memory import read_memory
from pipesim.importers.nemo_recipe import recipe_settings
from pipesim.importers.nemo_table import read_table
from pipesim.importers.overriding import YAML, overlaid, scripts_of, with_overrides
from pipesim.importers.request import NEEDED, Request, read_shape, read_sizes
from pipesim.importers.tokenizers import embedding_rows, tokens_of
from pipesim.reading import read_text
from pipesim.scenario.settings import Settings

_GATED = ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu", "quick-geglu")
_SIZES = {
    "tensor": ("model.tensor_model_parallel_size",),
    "pipeline": ("model.pipeline_model_parallel_size",),
    "context": ("model.context_parallel_size",),
    "expert": ("model.expert_model_parallel_size",),
}
_LENGTHS = ("model.encoder_seq_length", "model.seq_length", "dataset.seq_length", "dataset.sequence_length")
_MTP = "model.mtp_num_layers"
_SHAPE = {
    "num_hidden_layers": ("model.num_layers",),
    "hidden_size": ("model.hidden_size",),
    "num_attention_heads": ("model.num_attention_heads",),
    "intermediate_size": ("model.ffn_hidden_size",),
    "num_key_value_heads": ("model.num_query_groups",),
    "head_dim": ("model.kv_channels",),
    "num_experts": ("model.num_moe_experts",),
    "num_experts_per_tok": ("model.moe_router_topk",),
    "moe_intermediate_size": ("model.moe_ffn_hidden_size",),
    "shared_expert_intermediate_size": ("model.moe_shared_expert_intermediate_size",),
    "q_lora_rank": ("model.q_lora_rank",),
    "kv_lora_rank": ("model.kv_lora_rank",),
    "qk_nope_head_dim": ("model.qk_head_dim",),
    "qk_rope_head_dim": ("model.qk_pos_emb_head_dim",),
    "v_head_dim": ("model.v_head_dim",),
    "num_nextn_predict_layers": (_MTP,),
}
_ADAPTERS: dict[str, Any] = {
    "kind": ("peft", "peft.scheme", "peft.peft_scheme", "model.peft.peft_scheme"),
    "rank": ("peft.dim", "peft.lora_tuning.adapter_dim", "model.peft.lora_tuning.adapter_dim"),
    "targets": ("peft.target_modules", "model.peft.lora_tuning.target_modules"),
    "usual_rank": 32,
    "usual_targets": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
}
"""Values by default: NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/recipes/common.py, commit 0eca073."""
_FIRST_AND_LAST = (
    ("first", ("model.num_layers_in_first_pipeline_stage",)),
    ("last", ("model.num_layers_in_last_pipeline_stage",)),
)


def read(request: Request) -> Facts:
    """Read a NeMo YAML file, a Megatron-Bridge recipe, or a row of a table; further files override it.

    ``${...}`` references and the launcher's arithmetic are resolved; scripts beside the file, or MLPerf's
    configurations without one, are the environment.

    Raises
    ------
    ScenarioError
        Not such a file, values that are missing or refer elsewhere, or sizes that cannot be.
    """
    path = request.paths[0]
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return read_table(request)
    if suffix == ".py":
        return _of_python(request)
    if request.row is not None:
        raise ScenarioError("is for CSV tables and Python files; remove it", file=str(path), key="--row")
    script = scripts_of(request)
    document = overlaid({} if suffix in YAML else mlperf_document(script, str(path)), request.paths)
    if not isinstance(document.get("model"), dict):
        raise ScenarioError("holds no model: mapping, as NeMo's configurations do", file=str(path))
    environment = environment_of(script)
    values = resolved(document, file=str(path), mounted="training", environment=environment)
    inferred: dict[str, str] = {}
    settings = request.settings(with_overrides(values, request, inferred, script), str(path))
    if settings.is_known("model.base_config"):
        inferred["precision.gradient_bytes"] = "2 (MLPerf's pretrain.py reduces gradients in bf16)"
    variables = request.settings(unread(environment, document), request.files)
    facts = _facts(request, settings)
    facts.accelerator = accelerator_of(request)
    if "precision.gradient_bytes" in inferred:
        facts.precision["gradient_bytes"] = 2
    if facts.optimizer == "plain" and variables.text("$USE_DIST_OPTIMIZER") == "True":
        facts.optimizer = "sharded"
        facts.inferred["optimizer"] = "sharded ($USE_DIST_OPTIMIZER)"
    facts.inferred |= inferred
    return facts


def _of_python(request: Request) -> Facts:
    """Read a recipe's function, or a workload of the performance tests."""
    text = read_text(request.paths[0])
    if not has_workloads(text):
        return _facts(request, recipe_settings(request))
    values, system, gpus = workload_settings(request, text)
    inferred: dict[str, str] = {}
    settings = request.settings(with_overrides(values, request, inferred), request.files)
    facts = _facts(request, settings)
    facts.accelerator = ACCELERATORS.get(system.lower())
    facts.num_gpus = facts.num_gpus or gpus
    facts.gpus_per_node = 4 if system.startswith("GB") else 8
    facts.inferred |= inferred
    return facts


def _facts(request: Request, settings: Settings) -> Facts:
    name = settings.text("run.name") if settings.is_known("run.name") else None
    facts = request.facts("NeMo", name)
    facts.limits = LIMITS
    read_sizes(settings, facts, _SIZES)
    facts.expert_tensor = settings.count("model.expert_tensor_parallel_size")
    facts.sequence_parallel = settings.flag("model.sequence_parallel")
    preset = _preset(settings)
    facts.model = preset or {"name": facts.name} | _model(facts, settings)
    _cut(facts, settings)
    _gpus(facts, settings)
    facts.micro = settings.required(
        "model.micro_batch_size",
        "train.micro_batch_size",
        what="sequences of a microbatch",
        sets="batch.micro",
    )
    facts.global_size = settings.required(
        "model.global_batch_size", "train.global_batch_size", what="sequences of a step", sets="batch.global"
    )
    read_memory(settings, facts)
    read_adapters(settings, facts, **_ADAPTERS)
    return facts


def _preset(settings: Settings) -> dict[str, Any]:
    """Take the preset of a recipe that names its model and states no shape."""
    name = settings.text("model.preset", sets="model.preset")
    if name is None:
        size = settings.raw("model.base_config", sets="model")[1]
        name = None if size is None else preset_named(f"llama3-{size}")
    if name is None or "model.num_layers" in settings:
        return {}
    length = settings.count(*_LENGTHS, sets="model.seq_length")
    further = settings.count(_MTP, sets="model.num_nextn_predict_layers", minimum=0)
    layers = settings.count("model.overwritten_attributes.num_layers", sets="model.num_hidden_layers")
    return {"preset": name} | {
        key: value
        for key, value in (
            ("seq_length", length),
            ("num_hidden_layers", layers),
            ("num_nextn_predict_layers", further),
        )
        if value is not None
    }


def _cut(facts: Facts, settings: Settings) -> None:
    chunks = settings.count("model.virtual_pipeline_model_parallel_size", sets="parallel.virtual_stages") or 1
    if chunks > 1 and facts.pipeline == 1:
        facts.not_used["model.virtual_pipeline_model_parallel_size"] = f"{chunks}: no pipeline to interleave"
        chunks = 1
    num_layers = int(fields_of(facts.model)["num_hidden_layers"])
    ends = {end: settings.count(*paths) for end, paths in _FIRST_AND_LAST}
    facts.virtual_stages = chunks
    layout = layout_text(settings, "model.pipeline_model_parallel_layout")
    if layout is not None and "layers" not in facts.stated:
        key = "model.pipeline_model_parallel_layout"
        facts.model["num_hidden_layers"] = cut_by_layout(
            facts, layout, num_layers, file=settings.file, key=key
        )
        facts.schedule = "interleaved-1f1b" if facts.virtual_stages > 1 else "1f1b"
        return
    if (any(ends.values()) and facts.pipeline > 1) or isinstance(facts.stated.get("layers"), list):
        facts.schedule = "interleaved-1f1b" if chunks > 1 else "1f1b"
        _uneven(facts, settings, num_layers, ends)
        return
    first = settings.flag("model.account_for_embedding_in_pipeline_split")
    last = settings.flag("model.account_for_loss_in_pipeline_split")
    cut_evenly(facts, num_layers, chunks, file=settings.file, key="model.num_layers", first=first, last=last)


def _uneven(facts: Facts, settings: Settings, num_layers: int, ends: dict[str, int | None]) -> None:
    if "layers" in facts.stated:
        facts.virtual_stages = max(len(facts.stated["layers"]) // facts.pipeline, 1)
        return
    given = [size for size in ends.values() if size is not None]
    between, rest = facts.pipeline - len(given), num_layers - sum(given)
    ranks = [rest // between] * between if between else []
    ranks = [*([ends["first"]] if ends["first"] else []), *ranks, *([ends["last"]] if ends["last"] else [])]
    if sum(ranks) != num_layers or any(count % facts.virtual_stages for count in ranks):
        raise settings.refuse(
            "model.num_layers",
            f"{num_layers} layers do not fall to {facts.pipeline} ranks of {facts.virtual_stages} chunks "
            f"with {given} at the ends; --set layers=[...] states the layers of every stage",
        )
    facts.layers = [count // facts.virtual_stages for _ in range(facts.virtual_stages) for count in ranks]


def _model(facts: Facts, settings: Settings) -> dict[str, Any]:
    model = read_shape(settings, _SHAPE, **{key: words for key, words in NEEDED.items() if key in _SHAPE})
    activation = settings.text("model.activation") or "gelu"
    gated = settings.flag("model.gated_linear_unit", default=activation in _GATED)
    model["seq_length"] = _length(facts, settings)
    learned = (settings.text("model.position_embedding_type") or "learned_absolute") == "learned_absolute"
    positions = settings.count("model.max_position_embeddings") or model["seq_length"]
    model |= {
        "vocab_size": _vocabulary(facts, settings),
        "gated_mlp": gated,
        "tie_word_embeddings": settings.flag("model.share_embeddings_and_output_weights", default=True),
        "biases": settings.flag("model.bias", "model.add_bias_linear", default=True),
        "num_learned_positions": positions if learned else 0,
        "source": f"NeMo configuration {facts.files}",
    }
    if "num_experts" in model:
        model.setdefault("num_experts_per_tok", 2)
        model.setdefault("moe_intermediate_size", model.get("intermediate_size", 4 * model["hidden_size"]))
    elif "num_experts_per_tok" in model:
        for key in ("num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"):
            model.pop(key, None)
    if "kv_lora_rank" in model:
        model.pop("head_dim", None)
    return model


def _length(facts: Facts, settings: Settings) -> int:
    """Read the model's length; that of its data may be another, and is said then."""
    length = settings.count(*_LENGTHS, sets="model.seq_length")
    of_data = settings.count("model.data.seq_length")
    if length is None:
        return of_data or settings.required(*_LENGTHS, what=NEEDED["seq_length"], sets="model.seq_length")
    if of_data not in (None, length):
        facts.inferred["model.seq_length"] = (
            f"{length} (model.encoder_seq_length; model.data.seq_length is {of_data}, which "
            f"--set model.seq_length={of_data} takes)"
        )
    return length


def _vocabulary(facts: Facts, settings: Settings) -> int:
    stated = settings.count("model.vocab_size", "model.padded_vocab_size", sets="model.vocab_size")
    divisor = settings.count("model.make_vocab_size_divisible_by") or 128
    names = _known_texts(
        settings,
        (
            "model.tokenizer.model",
            "model.tokenizer.vocab_file",
            "tokenizer.tokenizer_model",
            "model.tokenizer.type",
            "tokenizer.tokenizer_type",
        ),
    )
    settings.skip("model.tokenizer.library")
    return stated if stated is not None else embedding_rows(facts, tokens_of(*names), divisor=divisor)


def _known_texts(settings: Settings, paths: Iterable[str]) -> list[str | None]:
    settings.skip(*paths)
    return [settings.text(path) for path in paths if settings.is_known(path)]


def _gpus(facts: Facts, settings: Settings) -> None:
    nodes, devices = settings.count("trainer.num_nodes"), settings.count("trainer.devices")
    facts.gpus_per_node = devices
    if facts.num_gpus is None and nodes is not None and devices is not None:
        facts.num_gpus = nodes * devices
