"""How Megatron-LM's arguments cut the layers into stages, and the schedule that follows."""

from __future__ import annotations

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, joined, refuse_lost_layers, spread
from pipesim.importers.megatron_layout import Layout, parse_layout
from pipesim.scenario.counts import MAX_LAYERS
from pipesim.scenario.settings import Settings

_LAYOUT = "pipeline-model-parallel-layout"
_PER_STAGE = "num-layers-per-virtual-pipeline-stage"
_STAGES = "num-virtual-stages-per-pipeline-rank"
_FIRST = "decoder-first-pipeline-num-layers"
_LAST = "decoder-last-pipeline-num-layers"
_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Letters of a layout by the names that its form as a list has."""


def cut(facts: Facts, settings: Settings) -> None:
    """Set layers, chunks and schedule.

    Parameters
    ----------
    facts : Facts
        With the pipeline's size; receives the layers, their split, the chunks and the schedule.
    settings : Settings
        The arguments.

    Raises
    ------
    ScenarioError
        Layers that would be dropped, stages without a layer, or two ways of cutting at once.
    """
    layout = settings.text(_LAYOUT)
    num_layers = settings.count(
        "num-layers",
        "decoder-num-layers",
        "encoder-num-layers",
        sets="model.num_hidden_layers",
        maximum=MAX_LAYERS,
    )
    prediction = settings.count("mtp-num-layers", minimum=0) or 0
    facts.model |= {"num_nextn_predict_layers": prediction} if prediction else {}
    stated = facts.stated.get("layers")
    if layout is not None and stated is None:
        num_layers = _by_layout(facts, settings, layout, num_layers, prediction)
    elif num_layers is None:
        raise settings.refuse(
            "num-layers", "missing; needed: transformer layers; --set model.num_hidden_layers=N states them"
        )
    elif isinstance(stated, list):
        facts.virtual_stages = max(len(stated) // facts.pipeline, 1)
        settings.skip(_PER_STAGE, _STAGES, _FIRST, _LAST)
    else:
        _by_numbers(facts, settings, num_layers)
    facts.model["num_hidden_layers"] = num_layers
    group = settings.count("microbatch-group-size-per-virtual-pipeline-stage")
    facts.schedule = _schedule(facts, settings)
    if group is not None and facts.schedule == "interleaved-1f1b":
        facts.microbatch_group_size = group


def _by_layout(facts: Facts, settings: Settings, text: str, num_layers: int | None, prediction: int) -> int:
    for other in (_PER_STAGE, _STAGES, _FIRST, _LAST):
        if other in settings:
            raise settings.refuse(
                _LAYOUT, f"is stated beside --{other}; one of them: --ignore {other} leaves that out"
            )
    layout = parse_layout(text, file=settings.file, key=_LAYOUT)
    if layout.num_prediction_layers != prediction and "mtp-num-layers" in settings:
        raise settings.refuse(
            _LAYOUT,
            f"holds {layout.num_prediction_layers} prediction layers (m), --mtp-num-layers is {prediction}; "
            "--ignore mtp-num-layers reads on without it",
        )
    return cut_by_layout(facts, text, num_layers, file=settings.file, key=_LAYOUT)


def layout_text(settings: Settings, key: str) -> str | None:
    """Read a layout: a text, or a list with a list of names a stage.

    Raises
    ------
    ScenarioError
        Neither.
    """
    value = settings.raw(key)[1]
    if isinstance(value, list) and all(isinstance(stage, list) for stage in value):
        stages = ["".join(_LETTERS.get(str(name), str(name)) for name in stage) for stage in value]
        return "|".join(stages)
    if value is not None and not isinstance(value, str):
        raise settings.refuse(
            key,
            f"found {str(value)[:60]!r}; a text such as 'Et|t|tL' is needed; --ignore {key} splits evenly",
        )
    return value


def cut_by_layout(facts: Facts, text: str, num_layers: int | None, *, file: str, key: str) -> int:
    """Set chunks and the layers of each stage from a layout.

    Parameters
    ----------
    facts : Facts
        With the pipeline's size; receives the split.
    text : str
        The layout.
    num_layers : int, optional
        Layers of the model; counted in the layout where not stated.
    file, key : str
        For messages.

    Returns
    -------
    int
        Layers of the model, prediction layers that are written as such included.

    Raises
    ------
    ScenarioError
        Not a layout, or one for other ranks or layers.
    """
    layout = parse_layout(text, file=file, key=key)
    layers = layout.layers
    chunks, rest = divmod(len(layers), facts.pipeline)
    if rest:
        raise ScenarioError(
            f"{len(layers)} stages on {facts.pipeline} ranks: not a multiple; --set parallel.pipeline=N "
            "states other ranks",
            file=file,
            key=key,
        )
    if num_layers is None:
        num_layers = sum(layers)
        facts.inferred["model.num_hidden_layers"] = f"{num_layers} (counted in the layout)"
    if sum(layers) != num_layers:
        raise ScenarioError(
            f"holds {sum(layers)} layers, the model has {num_layers}; --set model.num_hidden_layers=N "
            f"states them, --ignore {key} reads on without it",
            file=file,
            key=key,
        )
    if layout.num_prediction_layers:
        where = joined(stage for stage, letters in enumerate(layout.stages) if "m" in letters)
        if where != str(len(layers) - 1):
            facts.not_used["mtp-num-layers"] = (
                f"{layout.num_prediction_layers} on stage {where}: modelled on the last stage alone"
            )
    stages = _without_empty(facts, layout, file)
    further = layout.num_prediction_layers - facts.added_layers
    facts.model.pop("num_nextn_predict_layers", None)
    facts.model |= {"num_nextn_predict_layers": further} if further else {}
    num_layers += facts.added_layers
    facts.virtual_stages = chunks
    facts.layers = stages
    facts.inferred["layers"] = f"{joined(stages)} on {len(stages)} stages (from the layout)"
    facts.inferred["parallel.virtual_stages"] = f"{chunks} ({len(layers)} stages / {facts.pipeline} ranks)"
    return num_layers


def _without_empty(facts: Facts, layout: Layout, file: str) -> list[int]:
    """Write the prediction layers of a stage that has nothing else as transformer layers."""
    layers = list(layout.layers)
    for stage, letters in enumerate(layout.stages[:-1]):
        if layers[stage] or stage == 0:
            continue
        layers[stage] = letters.count("m")
        facts.added_layers += layers[stage]
        if not layers[stage]:
            total = spread(sum(layout.layers), len(layers))
            raise ScenarioError(
                f"stage {stage} is empty: neither layer, nor embedding, nor head, which is not modelled; "
                f"--set layers=[{','.join(map(str, total))}] gives every stage a layer",
                file=file,
                key=_LAYOUT,
            )
        facts.not_used["mtp-num-layers"] = (
            f"on stage {stage}, which has nothing else, written as {layers[stage]} transformer layer more, "
            "so that the stage is not empty"
        )
    return layers


def _by_numbers(facts: Facts, settings: Settings, num_layers: int) -> None:
    ranks = facts.pipeline
    embedding = settings.flag("account-for-embedding-in-pipeline-split")
    loss = settings.flag("account-for-loss-in-pipeline-split")
    accounted = num_layers + embedding + loss
    per_rank = _per_rank(facts, settings, num_layers, accounted)
    chunks = _chunks(facts, settings, per_rank, accounted)
    facts.virtual_stages = chunks
    if per_rank is None:
        layers = [accounted // (ranks * chunks)] * (ranks * chunks)
        layers[0] -= embedding
        layers[-1] -= loss
    else:
        layers = [count // chunks for _ in range(chunks) for count in per_rank]
    if min(layers) < 0 or 0 in layers[1:-1]:
        raise settings.refuse(
            _PER_STAGE if chunks > 1 else "pipeline-model-parallel-size",
            f"stage {layers.index(min(layers))} would hold no transformer layer; "
            f"--set layers=[{','.join(map(str, spread(num_layers, len(layers))))}] gives every stage one",
        )
    if len(set(layers)) > 1:
        facts.layers = layers
        facts.inferred["layers"] = f"{joined(layers)} on {len(layers)} stages"


def _per_rank(facts: Facts, settings: Settings, num_layers: int, accounted: int) -> list[int] | None:
    """Layers of each rank; None where embedding or loss count as layers of the first and last stage."""
    ranks = facts.pipeline
    first, last = settings.count(_FIRST), settings.count(_LAST)
    if first is None and last is None:
        refuse_lost_layers(
            facts,
            accounted,
            ranks,
            what="pipeline ranks",
            file=settings.file,
            key="num-layers",
            total=num_layers,
        )
        return [num_layers // ranks] * ranks if accounted == num_layers else None
    if accounted != num_layers:
        raise settings.refuse(
            _FIRST,
            "cannot be combined with accounting for embedding or loss; --set layers=[...] states the layers "
            "of every stage",
        )
    if ranks == 1:
        facts.not_used[_FIRST if first else _LAST] = "has no effect with one pipeline rank"
        return [num_layers]
    between = ranks - (first is not None) - (last is not None)
    rest = num_layers - (first or 0) - (last or 0)
    if rest < 0 or (between == 0 and rest):
        raise settings.refuse(
            _FIRST if first is not None else _LAST,
            f"first {first} and last {last} do not add up to {num_layers} layers on {ranks} ranks; "
            f"--set layers=[{','.join(map(str, spread(num_layers, ranks)))}] does",
        )
    if between:
        refuse_lost_layers(
            facts,
            rest,
            between,
            what="ranks in between",
            file=settings.file,
            key="num-layers",
            total=num_layers,
        )
    middle = [rest // between] * between if between else []
    return [*([first] if first is not None else []), *middle, *([last] if last is not None else [])]


def _chunks(facts: Facts, settings: Settings, per_rank: list[int] | None, accounted: int) -> int:
    ranks = facts.pipeline
    layers = settings.count(_PER_STAGE)
    stages = settings.count(_STAGES)
    if layers is not None and stages is not None:
        raise settings.refuse(
            _PER_STAGE, f"is stated beside --{_STAGES}; one of them: --ignore {_PER_STAGE} leaves this out"
        )
    if ranks == 1 or (layers is None and stages is None):
        if layers is not None or stages is not None:
            facts.not_used[_PER_STAGE if stages is None else _STAGES] = "has no effect with one pipeline rank"
        return 1
    if layers is not None:
        if per_rank is not None and len(set(per_rank)) > 1:
            raise settings.refuse(
                _PER_STAGE,
                f"cannot be combined with uneven ranks ({joined(per_rank)}); use --{_STAGES}, or --set "
                "layers=[...] with the layers of every stage",
            )
        each = accounted // ranks
        if each % layers:
            raise settings.refuse(
                _PER_STAGE,
                f"found {layers}, which does not divide the {each} layers of a rank; "
                f"--ignore {_PER_STAGE} reads on with one chunk a rank",
            )
        chunks = each // layers
        facts.inferred["parallel.virtual_stages"] = (
            f"{chunks} ({accounted} layers / (pipeline {ranks} x {layers} layers a stage))"
        )
        return chunks
    chunks = stages or 1
    for count in per_rank or [accounted // ranks]:
        refuse_lost_layers(
            facts, count, chunks, what="stages of a rank", file=settings.file, key=_STAGES, total=accounted
        )
    return chunks


def _schedule(facts: Facts, settings: Settings) -> str:
    """Name the schedule; the zero-bubble fork states it, Megatron-LM's own follows from the chunks."""
    in_v = settings.flag("zero-bubble-v-schedule")
    memory = settings.text("zero-bubble-v-schedule-mem-setup")
    limit = settings.count("zero-bubble-max-pending-backward", minimum=0)
    zero_bubble = settings.flag("enable-zero-bubble")
    if in_v or settings.flag("enable-1f1b-v"):
        facts.virtual_stages = 2
        name = "1f1b-v" if not in_v else {"min": "v-min", "half": "v-half"}.get(memory or "", "zb-v")
        facts.inferred["parallel.virtual_stages"] = f"2 (there and back, as {name} places its stages)"
        return name
    if zero_bubble:
        if facts.virtual_stages > 1:
            return "interleaved-zb"
        name = "zb-2p" if limit is not None and limit >= 2 * facts.pipeline else "zb-1p"
        facts.inferred["schedule"] = f"{name} (zero-bubble-max-pending-backward {limit or 'not stated'})"
        return name
    return "interleaved-1f1b" if facts.virtual_stages > 1 else "1f1b"
