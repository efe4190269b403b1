"""`pipesim presets`: what the package knows of hardware, models and software."""

from __future__ import annotations

from typing import Annotated

import typer

from pipesim.cli import options, terminal
from pipesim.scenario import Preset, find_preset, list_presets
from pipesim.show.blocks import Table
from pipesim.units import format_bytes_per_s, parse_bytes_per_s


def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None,
    as_json: options.AsJson = False,
    wide: options.Wide = False,
) -> None:
    """List presets, or show one with its source and date."""
    chosen = list_presets() if name is None else (find_preset(name),)
    if as_json:
        terminal.print_json([{"name": p.name, "kind": p.kind, **p.fields} for p in chosen])
        return
    if name is None:
        columns = ["kind", "name", "figures", *(["source"] if wide else [])]
        rows = [[p.kind, p.name, _figures(p), p.source][: len(columns)] for p in chosen]
        terminal.show(Table("", columns, rows, num_left=4), wide=wide)
        terminal.show("`pipesim presets NAME` shows all fields of one, with its source and date")
    else:
        rows = [[key, str(value)] for key, value in chosen[0].fields.items()]
        terminal.show(Table(chosen[0].name, ["key", "value"], rows, num_left=2))


def _figures(preset: Preset) -> str:
    fields = preset.fields
    match preset.kind:
        case "accelerators":
            kind = next(name for name in ("bf16", "fp16") if name in fields["peak"])
            return f"{fields['peak'][kind]} {kind}, {fields['memory']} at {fields['memory_bandwidth']}"
        case "links":
            rate = format_bytes_per_s(parse_bytes_per_s(fields["bandwidth"]))
            return f"{rate}, {fields['efficiency']:.0%} reached"
        case "models":
            layers, width = fields["num_hidden_layers"], fields["hidden_size"]
            return f"{layers} layers of {width}, {fields['seq_length']} tokens"
        case "efficiency":
            rows = sum(domain["rows"] for domain in fields.get("domains", []))
            return f"gemm {fields['gemm']:.0%}, " + (f"{rows} measured rows" if rows else "not measured")
        case "machines":
            link = fields["inter_node"]
            cards = f"{fields['nics_per_node']} x {link if isinstance(link, str) else link['name']}"
            return f"{fields['gpus_per_node']} x {fields['accelerator']}, {cards}"
