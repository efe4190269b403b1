"""Write docs/scenario.md, every key of a scenario file, from the schema that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipesim.scenario import quantities, schema
from pipesim.scenario.resolved import LayerSplit

TARGET = Path(__file__).with_name("scenario.md")
SECTIONS: dict[str, type[BaseModel]] = {
    "The file": schema.ScenarioKeys,
    "model": schema.ModelKeys,
    "cluster": schema.ClusterKeys,
    "cluster.accelerator": schema.Accelerator,
    "cluster.accelerator.peak": schema.PeakKeys,
    "cluster.intra_node, cluster.inter_node": schema.Link,
    "in_network of a link": schema.Switches,
    "one of cluster.groups": schema.NodeGroupKeys,
    "one of cluster.site_links": schema.SiteLink,
    "parallel": schema.ParallelKeys,
    "batch": schema.BatchKeys,
    "schedule": schema.ScheduleKeys,
    "costs": schema.CostKeys,
    "costs.p2p": schema.P2pKeys,
    "one of costs.skips": schema.SkipKeys,
    "efficiency": schema.Efficiency,
    "one of efficiency.domains": schema.Domain,
    "precision": schema.PrecisionKeys,
    "network": schema.NetworkRules,
    "jitter": schema.Jitter,
    "jitter.documents": schema.Documents,
    "trainable": schema.TrainableKeys,
    "offload": schema.Offload,
    "reliability": schema.Reliability,
}
REFERENCES = {
    "preset": "name of a preset (`pipesim presets`) that gives the other keys; those stated win",
    "hf": "a Hugging Face config.json, relative to the scenario, that gives the other keys; those stated win",
    "torch": "module:factory of PyTorch layers of your own, in place of all other keys but `name`; see below",
    "machine": "name of a preset of a whole machine; keys stated beside it win",
}
WORDS = {
    "Count": "whole number, at least 1",
    "Pieces": "whole number, at least 1",
    "CountOrZero": "whole number, at least 0",
    "Seconds": "time: 1.5 ms, or seconds",
    "FloatSeconds": "time: 1.5 ms, or seconds",
    "PositiveSeconds": "time above 0",
    "PositiveFloatSeconds": "time above 0",
    "Bytes": "size: 80 GB, 80 GiB",
    "PositiveBytes": "size above 0: 80 GB, 80 GiB",
    "BytesPerS": "rate: 50 GB/s, 400 Gbit/s",
    "FlopsPerS": "rate: 312 TFLOP/s",
    "Share": "above 0, at most 1: 0.72, 72 %",
    "ShareOrZero": "0 to 1: 0.5, 50 %",
    "ShareBelowOne": "0 to below 1: 0.05, 5 %",
    "PositiveNumber": "number above 0",
    "NumberOrZero": "number, at least 0",
    "Spread": "0 to 1",
    "PerStageSeconds": "time, or a list with one a stage",
    "PerStagePositiveSeconds": "time above 0, or a list with one a stage",
    "PerStageBytes": "size, or a list with one a stage",
}
HEAD = """# Keys of a scenario file

Written by `python docs/write_scenario_reference.py` from the schema. A file states `parallel`, `batch`, and
either `model` and `cluster` or `costs`; all else has a default, and what was inferred is echoed by every
command. Any key can be set from the command line by its dotted path: `--set batch.global=256 --set
cluster.inter_node=ib-ndr`. Units are written out, with powers of 1000 (GB) or 1024 (GiB). Where the last
column is empty, a key may be left out: its meaning says what then holds, or what it is about is not there.
"""
TORCH = """
## A model of your own: `model: {torch: "module:factory"}`

The module is looked for in the scenario's folder, then as Python does. `factory()` (or
`factory(microbatch_size)`) returns a `pipesim.executor.models.PipelineModel(layers, sample, loss)`:

- `layers`: a list of `torch.nn.Module`, or of functions that build one. Each maps one tensor to one tensor;
  the model is cut between them.
- `sample(generator)`: inputs and targets of one microbatch, drawn from a `torch.Generator`.
- `loss(output, targets)`: the mean loss of the microbatch.

Three more are optional: `sequence_dim`, the dimension that schedules with slices cut; `optimizer`, from a
rank's parameters to their optimizer; and `skips`, pairs of layers: the output of the first is given to the
second too, a later one, as a further argument. `scenarios/resnet.py` and `scenarios/dit.py` are complete
examples, `scenarios/sdxl.py` and `scenarios/t5.py` with skip connections.
"""


def reference() -> str:
    """Give the whole text of docs/scenario.md."""
    parts = [HEAD]
    for title, keys in SECTIONS.items():
        head = title if title == "The file" else f"`{title}`".replace(", ", "`, `")
        parts.append(f"\n## {head}\n\n| key | meaning | allowed | default |\n|---|---|---|---|\n")
        parts += [f"| {' | '.join(row)} |\n" for row in _rows(keys)]
    return "".join([*parts, TORCH])


def _rows(keys: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    for name in getattr(keys, "references", ()):
        yield f"`{name}`", REFERENCES[name], "text", ""
    hints = get_type_hints(keys, include_extras=True)
    for name, field in keys.model_fields.items():
        assert field.description, (keys, name)
        allowed = " or ".join(dict.fromkeys(_allowed(hints[name])))
        yield f"`{field.alias or name}`", field.description, allowed, _default(field, hints[name])


def _allowed(hint: Any) -> Iterator[str]:
    for name, words in WORDS.items():
        if hint is getattr(quantities, name):
            yield words
            return
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        yield ", ".join(arguments)
    elif get_origin(hint) in (dict, tuple):
        yield "mapping" if get_origin(hint) is dict else "list"
    elif get_origin(hint) is Annotated:
        yield from _allowed(arguments[0])
    elif isinstance(hint, type) and issubclass(hint, BaseModel):
        yield "name or section" if "preset" in getattr(hint, "references", ()) else "section"
    elif arguments:
        for argument in arguments:
            yield from _allowed(argument)
    elif hint is not type(None):
        plain = {bool: "true, false", str: "text", int: "whole number", LayerSplit: "even, balanced, list"}
        yield plain[hint]


def _default(field: FieldInfo, hint: Any) -> str:
    if field.is_required():
        return "needed"
    value = field.default
    if value is None or field.default_factory is not None or isinstance(value, (BaseModel, tuple)):
        return ""
    if any(hint is getattr(quantities, name) for name in WORDS if name.endswith("Seconds")):
        return f"{value:,.0f} s"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    TARGET.write_text(reference())
