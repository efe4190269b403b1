"""NeMo's tables of recommended configurations (CSV): one row is one scenario."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.importers.facts import Facts, cut_evenly, product
from pipesim.importers.model_names import ACCELERATORS, preset_named
from pipesim.importers.request import Request
from pipesim.reading import csv_rows, read_text
from pipesim.scenario.counts import LARGEST_COUNT, clean
from pipesim.scenario.presets import get_preset, list_presets

MAX_ROWS = 10_000
_NEEDED = ("model", "num_gpus", "seq_len", "tp_size", "pp_size", "mbs", "gbs")
_NAMES = ("task", "model", "size", "system", "dtype")
_NUMBER = re.compile(r"([0-9]{1,12})(?:\.0*)?")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*|")
_USED = (
    *_NEEDED,
    *_NAMES,
    "cp_size",
    "ep_size",
    "vp_size",
    "etp_size",
)


def read_table(request: Request) -> Facts:
    """Read one row of a table of recommended configurations.

    Whole numbers may be written as ``8.0``. The row is its number from 1, its name
    (``pre_train-llama3-70b-h100-bf16``) or an unambiguous part of that; it may be left out where there is
    one.

    Raises
    ------
    ScenarioError
        Not such a table, a row that is not there or not the only one meant, cells that are not numbers, or
        sizes that cannot be; without a row, the list of rows with what is wrong with each.
    """
    path = request.paths[0]
    if request.define:
        raise ScenarioError("has no meaning for a table; remove it", file=str(path), key="--define")
    rows = _rows(path)
    number = _chosen(rows, request.row, str(path))
    return _facts(rows[number - 1], number, request)


def describe_rows(path: str | Path) -> list[tuple[int, str, str]]:
    """List a table's rows.

    Parameters
    ----------
    path : str or Path
        As for `read_table`.

    Returns
    -------
    list of (int, str, str)
        Number, name, and what is wrong with the sizes (empty where nothing is).

    Raises
    ------
    ScenarioError
        Not such a table.
    """
    return [(number, _name(row), _problem(row, number, path)) for number, row in enumerate(_rows(path), 1)]


def _rows(path: str | Path) -> list[dict[str, str]]:
    file = str(path)
    text = read_text(path)
    rows = ([cell.strip() for cell in row] for _, row in csv_rows(text, file=file))
    lines = [row for row in rows if any(row)]
    if not lines:
        raise ScenarioError("is empty, a table with a header is needed", file=file)
    header, *body = lines
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        raise ScenarioError(f"has no column {', '.join(missing)}; needed: {', '.join(_NEEDED)}", file=file)
    if len(set(header)) != len(header):
        raise ScenarioError("has two columns of one name", file=file)
    if len(body) > MAX_ROWS:
        raise ScenarioError(f"has more than {MAX_ROWS} rows", file=file)
    if not body:
        raise ScenarioError("has a header and no row", file=file)
    for number, line in enumerate(body, 1):
        if len(line) != len(header):
            raise ScenarioError(
                f"row {number} has {len(line)} cells, the header has {len(header)}", file=file
            )
    return [dict(zip(header, line, strict=True)) for line in body]


def _chosen(rows: list[dict[str, str]], wanted: str | None, file: str) -> int:
    names = [_name(row) for row in rows]
    if wanted is None:
        if len(rows) == 1:
            return 1
        listed = ", ".join(
            f"{number} {name}" + (f" (wrong: {problem})" if problem else "")
            for number, name, problem in describe_rows(file)
        )
        raise ScenarioError(
            f"has {len(rows)} rows; choose one by --row: {clean(listed, most=6000)}", file=file
        )
    if wanted.isdecimal():
        number = int(wanted[:9])
        if not 1 <= number <= len(rows):
            raise ScenarioError(f"found {wanted}; there are rows 1 to {len(rows)}", file=file, key="--row")
        return number
    plain = wanted.lower()
    for matches in (
        [number for number, name in enumerate(names, 1) if name == plain],
        [number for number, name in enumerate(names, 1) if plain in name],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            listed = ", ".join(f"{number} {names[number - 1]}" for number in matches[:20])
            raise ScenarioError(f"{wanted!r} names several rows: {listed}", file=file, key="--row")
    raise ScenarioError(
        f"no row is named {wanted[:60]!r}; rows: {clean(', '.join(names), most=3000)}", file=file, key="--row"
    )


def _facts(row: Mapping[str, str], number: int, request: Request) -> Facts:
    cells = _Cells(row, number, str(request.paths[0]))
    left = {name: cell for name, cell in row.items() if name not in _USED and cell}
    task = cells.word("task")
    if task not in ("", "pre_train", "sft"):
        left["task"] = task
    request.settings(left, cells.file)
    facts = request.facts("NeMo recommended configurations", _name(row))
    facts.tensor, facts.pipeline = cells.needed("tp_size"), cells.needed("pp_size")
    facts.context, facts.expert = cells.count("cp_size") or 1, cells.count("ep_size") or 1
    facts.expert_tensor = cells.count("etp_size")
    chunks = (cells.count("vp_size") or 1) if facts.pipeline > 1 else 1
    facts.num_gpus = request.num_gpus or cells.needed("num_gpus")
    facts.micro, facts.global_size = cells.needed("mbs"), cells.needed("gbs")
    system = cells.word("system")
    facts.accelerator = ACCELERATORS.get(system)
    facts.gpus_per_node = 4 if system.startswith("gb") else 8
    facts.inferred["cluster.gpus_per_node"] = f"{facts.gpus_per_node} (usual for {system or 'a node'})"
    dtype = cells.word("dtype")
    if dtype in ("bf16", "fp16", "fp8"):
        facts.precision["compute"] = dtype
    facts.precision["gradient_bytes"] = 2
    facts.inferred["precision.gradient_bytes"] = "2 (NeMo's performance recipes reduce gradients in bf16)"
    facts.sequence_parallel = facts.tensor > 1
    facts.inferred["parallel.sequence_parallel"] = "on with tensor parallelism, as in NeMo's recipes"
    facts.optimizer = "sharded"
    facts.inferred["optimizer"] = "sharded, as in NeMo's recipes"
    num_layers = _model(facts, cells)
    stages = facts.pipeline * chunks
    # NeMo's recipes count embedding and head as layers where the layers alone do not fall to the stages.
    ends = int(num_layers % stages > 0 and (num_layers + 2) % stages == 0)
    cut_evenly(facts, num_layers, chunks, file=cells.file, key=f"row {number}", first=ends, last=ends)
    return facts


def _model(facts: Facts, cells: _Cells) -> int:
    """Take the preset that the table names, and give its layers."""
    wanted = "-".join(filter(None, (cells.word("model"), cells.word("size"))))
    stated = facts.stated.get("model", facts.stated.get("model.preset"))
    preset = stated if isinstance(stated, str) else preset_named(wanted)
    if preset is None:
        known = ", ".join(each.name for each in list_presets("models"))
        raise ScenarioError(
            f"row {cells.number}: the shape of {wanted!r} is not in the table and no preset; presets: {known}"
            "; --set model=PRESET takes another",
            file=cells.file,
            key="model",
        )
    facts.model = {"preset": preset, "seq_length": cells.needed("seq_len")}
    facts.inferred["model"] = f"preset {preset} (the table has only the name)"
    return int(get_preset("models", preset, key="model").fields["num_hidden_layers"])


def _problem(row: Mapping[str, str], number: int, path: str | Path) -> str:
    try:
        return _sizes_problem(_Cells(row, number, str(path)))
    except ScenarioError as error:
        return error.message


def _sizes_problem(cells: _Cells) -> str:
    sizes = {"tensor": cells.needed("tp_size"), "pipeline": cells.needed("pp_size")}
    if (context := cells.count("cp_size") or 1) > 1:
        sizes["context"] = context
    at_least, words = product(**sizes)
    gpus = cells.needed("num_gpus")
    if gpus % at_least:
        return f"{words} does not divide {gpus} GPUs"
    at_once = cells.needed("mbs") * gpus // at_least
    total = cells.needed("gbs")
    return f"global batch {total} is not a multiple of {at_once}" if total % at_once else ""


def _name(row: Mapping[str, str]) -> str:
    return clean("-".join(row[key] for key in _NAMES if row.get(key)).lower(), most=80)


class _Cells:
    """One row's cells as numbers and words; a formula is neither."""

    def __init__(self, row: Mapping[str, str], number: int, file: str) -> None:
        self._row = row
        self.number = number
        self.file = file

    def count(self, column: str) -> int | None:
        cell = self._row.get(column, "")
        if cell == "":
            return None
        match = _NUMBER.fullmatch(cell)
        if match is None or int(match[1]) > LARGEST_COUNT:
            raise ScenarioError(
                f"row {self.number}: found {clean(cell, most=60)!r}; a whole number is needed",
                file=self.file,
                key=column,
            )
        return int(match[1])

    def needed(self, column: str) -> int:
        value = self.count(column)
        if not value:
            raise ScenarioError(
                f"row {self.number}: found {self._row.get(column, '')!r}; at least 1 is needed",
                file=self.file,
                key=column,
            )
        return value

    def word(self, column: str) -> str:
        cell = self._row.get(column, "")
        if not _WORD.fullmatch(cell):
            raise ScenarioError(
                f"row {self.number}: found {clean(cell, most=60)!r}; a plain name is needed",
                file=self.file,
                key=column,
            )
        return cell.lower()
