"""Cost tables as YAML or JSON files: what calibration writes and ``costs: {file: ...}`` reads.

Keys are the fields of `CostTable`, so every number's unit stands in its name. A number that must stay exact
is written as text, ``"1/3"``; one such number makes the whole table exact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import yaml

from pipesim.costs.host import HostCost
from pipesim.costs.network.alpha_beta import Algorithm, LinkCost, Number, PointToPoint, Ring, Shortcut
from pipesim.costs.table import Array, CostTable, GradientCollective
from pipesim.errors import ScenarioError
from pipesim.files import write_text
from pipesim.scenario.counts import as_count
from pipesim.scenario.loading import read_yaml_mapping
from pipesim.units import LARGEST, SMALLEST

FORMAT = "pipesim cost table 1"

_NEEDED_ARRAYS = ("forward_s", "backward_s", "input_gradient_s", "weight_gradient_s")
_OTHER_ARRAYS = (
    "boundary_bytes",
    "gradient_bytes",
    "fixed_sync_s",
    "optimizer_s",
    "weight_bytes",
    "optimizer_bytes",
    "activation_bytes",
    "working_bytes",
)
"""Zero where a file leaves them out."""
_OPTIONAL_SCALARS = (
    "memory_limit_bytes",
    "tokens_per_step",
    "samples_per_step",
    "model_flops_per_step",
    "causal_flops_per_step",
    "hardware_flops_per_step",
    "num_gpus",
    "peak_flops_per_gpu",
    "price_usd_per_gpu_hour",
)
_PARTS = ("forward_parts_s", "backward_parts_s")
_COLLECTIVES: tuple[GradientCollective, ...] = get_args(GradientCollective)
_OPTIONAL_ARRAYS = (
    "overlapped_pair_s",
    "expert_share",
    "deferred_bytes",
    "logit_bytes",
    "deferred_logit_bytes",
)
_RINGS = ("gradient_ring", "expert_ring", "across_ring", "tied_embedding_ring")
_NUMBERS = ("overlap_slowdown", "tied_embedding_bytes")
_EVIDENCE = "calibration"
_OF_THE_CLUSTER = (
    "fabric",
    "gradient_buckets",
    "of_ranks",
    "optimizer_fixed_s",
    "second_embedding",
    "shard_exchange",
)
"""A file holds what ranks and links cost, not the cluster that they were worked out for."""
_NAMES = [item.name for item in fields(CostTable) if item.name not in _OF_THE_CLUSTER]


def write_cost_table(
    table: CostTable, path: str | Path, *, evidence: Mapping[str, Any] | None = None
) -> None:
    """Write a cost table; a name that ends in ``.json`` gives JSON, any other YAML.

    The file appears whole or not at all. `evidence` is plain data on how the numbers were found; it is kept
    under ``calibration``, and readers of the costs pass over it.

    Raises
    ------
    ScenarioError
        If the file cannot be written, or could not be read again.
    """
    content: dict[str, Any] = {"format": FORMAT}
    for name in _NAMES:
        value = getattr(table, name)
        if value is not None:
            content[name] = _plain(value)
    if evidence is not None:
        content[_EVIDENCE] = _plain(evidence)
    if Path(path).suffix == ".json":
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    else:
        text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110)
    write_text(path, text, reader=read_cost_table)


def _plain(value: Any) -> Any:
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, np.ndarray):
        return [_plain(entry) for entry in value.tolist()]
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Ring):
        return {name: _plain(entry) for name in Ring.__slots__ if (entry := getattr(value, name)) is not None}
    if isinstance(value, (HostCost, LinkCost, PointToPoint, Shortcut)):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return value


def read_cost_table(path: str | Path) -> CostTable:
    """Read a cost table from a YAML or JSON file.

    Needed are the durations of F, B, I, W (one entry a stage) and ``point_to_point``; other arrays are zero
    and other facts unknown where they are left out.

    Raises
    ------
    ScenarioError
        If the file cannot be read or is no cost table; if a key is missing, unknown, or has an impossible
        value.
    """
    content = read_yaml_mapping(path)
    content.pop(_EVIDENCE, None)
    source = _Source(str(path), exact=_has_text_number(content))
    if content.pop("format", None) != FORMAT:
        raise source.error("format", f"is not a cost table; its first line must be 'format: {FORMAT}'")
    for key in content:
        if key not in _NAMES:
            raise source.error(key, f"unknown key{_suggestion(key, _NAMES)}")
    for key in (*_NEEDED_ARRAYS, "point_to_point"):
        if key not in content:
            raise source.error(key, "is missing")

    forward = content["forward_s"]
    num_stages = len(forward) if isinstance(forward, list) else 0
    if num_stages == 0:
        raise source.error("forward_s", "must be a list with one entry a stage")
    values: dict[str, Any] = {
        key: source.array(content.get(key, [0] * num_stages), key, num_stages)
        for key in (*_NEEDED_ARRAYS, *_OTHER_ARRAYS)
    }
    for key in _OPTIONAL_ARRAYS:
        if content.get(key) is not None:
            values[key] = source.array(content[key], key, num_stages)
    for key in _PARTS:
        parts = source.mapping(content.get(key, {}), key)
        values[key] = {name: source.array(part, f"{key}.{name}", num_stages) for name, part in parts.items()}
    for key in _OPTIONAL_SCALARS:
        if content.get(key) is not None:
            values[key] = source.plain_number(content[key], key)
    if "num_gpus" in values:
        values["num_gpus"] = source.count(content["num_gpus"], "num_gpus")
    for key in _NUMBERS:
        if key in content:
            values[key] = source.number(content[key], key)
    if "gradient_collective" in content:
        values["gradient_collective"] = content["gradient_collective"]
        if content["gradient_collective"] not in _COLLECTIVES:
            raise source.error(
                "gradient_collective",
                f"found {content['gradient_collective']!r}; allowed: {', '.join(_COLLECTIVES)}",
            )
    for key in _RINGS:
        if content.get(key) is not None:
            values[key] = source.ring(content[key], key)
    if content.get("host") is not None:
        values["host"] = source.host(content["host"])
    values["point_to_point"] = source.point_to_point(content["point_to_point"])
    provenance = source.mapping(content.get("provenance", {}), "provenance")
    values["provenance"] = {key: str(words) for key, words in provenance.items()}
    return CostTable(**values)


def _has_text_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(
            _has_text_number(entry)
            for key, entry in value.items()
            if key not in ("format", "gradient_collective", "provenance", "algorithm")
        )
    if isinstance(value, list):
        return any(map(_has_text_number, value))
    return isinstance(value, str)


def _suggestion(key: str, known: list[str]) -> str:
    close = get_close_matches(key, known, n=2)
    return f"; did you mean {' or '.join(close)}?" if close else f"; allowed: {', '.join(known)}"


@dataclass(frozen=True, slots=True)
class _Source:
    """Turns parsed values into numbers and complains with the file and key."""

    file: str
    exact: bool

    def error(self, key: str, message: str) -> ScenarioError:
        return ScenarioError(message, file=self.file, key=key)

    def number(self, value: Any, key: str) -> Number:
        try:
            if isinstance(value, bool) or not isinstance(value, (int, float, str)):
                raise ValueError
            found = Fraction(value)  # refuses not-a-number and infinity as well as other text
        except (ValueError, OverflowError, ZeroDivisionError):
            raise self.error(key, f"found {value!r}; a finite number is needed") from None
        if found < 0:
            raise self.error(key, f"found {value!r}; it cannot be negative")
        if found and not SMALLEST <= found <= LARGEST:
            raise self.error(
                key, f"found {value!r}; between {SMALLEST:g} and {LARGEST:g} is allowed, or zero"
            )
        return found if self.exact else float(value)

    def plain_number(self, value: Any, key: str) -> float:
        return float(self.number(value, key))

    def positive(self, value: Any, key: str) -> Number:
        found = self.number(value, key)
        if found == 0:
            raise self.error(key, "must be above zero")
        return found

    def count(self, value: Any, key: str) -> int:
        return as_count(value, file=self.file, key=key)

    def rank(self, value: Any, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.error(key, f"found {value!r}; a rank, from 0 on, is needed")
        return value

    def array(self, value: Any, key: str, num_stages: int) -> Array:
        if not isinstance(value, list) or len(value) != num_stages:
            found = f"{len(value)} entries" if isinstance(value, list) else repr(value)
            raise self.error(key, f"found {found}; one entry a stage is needed, forward_s has {num_stages}")
        numbers = [self.number(entry, f"{key}[{stage}]") for stage, entry in enumerate(value)]
        return np.array(numbers, dtype=object if self.exact else float)

    def mapping(
        self,
        value: Any,
        key: str,
        needed: tuple[str, ...] | None = None,
        optional: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(key, f"found {value!r}; a mapping is needed")
        for name in needed or ():
            if name not in value:
                raise self.error(f"{key}.{name}", "is missing")
        for name in value:
            if needed is not None and name not in (*needed, *optional):
                allowed = ", ".join((*needed, *optional))
                raise self.error(f"{key}.{name}", f"unknown key; allowed: {allowed}")
        return value

    def link(self, value: Any, key: str) -> LinkCost:
        link = self.mapping(value, key, ("latency_s", "bytes_per_s"))
        bandwidth = link["bytes_per_s"]
        return LinkCost(
            self.number(link["latency_s"], f"{key}.latency_s"),
            None if bandwidth is None else self.positive(bandwidth, f"{key}.bytes_per_s"),
        )

    def point_to_point(self, value: Any) -> PointToPoint:
        key = "point_to_point"
        needed = ("intra", "inter", "gpus_per_rank", "gpus_per_node")
        links = self.mapping(value, key, needed, ("num_blocks", "num_ranks", "pair_rates"))
        pairs = links.get("pair_rates", [])
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and len(pair) == 3 for pair in pairs
        ):
            raise self.error(f"{key}.pair_rates", f"found {pairs!r}; a list of [rank, rank, rate] is needed")
        return PointToPoint(
            intra=self.link(links["intra"], f"{key}.intra"),
            inter=self.link(links["inter"], f"{key}.inter"),
            gpus_per_rank=self.count(links["gpus_per_rank"], f"{key}.gpus_per_rank"),
            gpus_per_node=self.count(links["gpus_per_node"], f"{key}.gpus_per_node"),
            num_blocks=self.count(links.get("num_blocks", 1), f"{key}.num_blocks"),
            num_ranks=self.count(links.get("num_ranks", 1), f"{key}.num_ranks"),
            pair_rates=tuple(
                (
                    self.rank(src, f"{key}.pair_rates[{place}]"),
                    self.rank(dst, f"{key}.pair_rates[{place}]"),
                    self.positive(rate, f"{key}.pair_rates[{place}]"),
                )
                for place, (src, dst, rate) in enumerate(pairs)
            ),
        )

    def host(self, value: Any) -> HostCost:
        names = tuple(item.name for item in fields(HostCost))
        host = self.mapping(value, "host", (), names)
        return HostCost(**{name: self.number(host.get(name, 0), f"host.{name}") for name in names})

    def ring(self, value: Any, key: str) -> Ring:
        needed = ("num_members", "bytes_per_s", "step_latency_s", "base_latency_s")
        ring = self.mapping(value, key, needed, ("ramp_s", "shortcuts", "algorithm"))
        shortcuts = ring.get("shortcuts", [])
        if not isinstance(shortcuts, list):
            raise self.error(f"{key}.shortcuts", f"found {shortcuts!r}; a list is needed")
        algorithm = ring.get("algorithm")
        return Ring(
            num_members=self.count(ring["num_members"], f"{key}.num_members"),
            bytes_per_s=self.positive(ring["bytes_per_s"], f"{key}.bytes_per_s"),
            step_latency_s=self.number(ring["step_latency_s"], f"{key}.step_latency_s"),
            base_latency_s=self.number(ring["base_latency_s"], f"{key}.base_latency_s"),
            ramp_s=self.number(ring.get("ramp_s", 0), f"{key}.ramp_s"),
            shortcuts=tuple(
                self.shortcut(entry, f"{key}.shortcuts[{place}]") for place, entry in enumerate(shortcuts)
            ),
            algorithm=None if algorithm is None else self.algorithm(algorithm, f"{key}.algorithm"),
        )

    def shortcut(self, value: Any, key: str) -> Shortcut:
        shortcut = self.mapping(value, key, ("algorithm", "latency_s", "bytes_per_s"))
        return Shortcut(
            self.algorithm(shortcut["algorithm"], f"{key}.algorithm"),
            self.number(shortcut["latency_s"], f"{key}.latency_s"),
            self.positive(shortcut["bytes_per_s"], f"{key}.bytes_per_s"),
        )

    def algorithm(self, value: Any, key: str) -> Algorithm:
        for name in get_args(Algorithm):
            if value == name:
                known: Algorithm = name
                return known
        raise self.error(key, f"found {value!r}; allowed: {', '.join(get_args(Algorithm))}")
