"""The published sets: which table, which rows, what is compared, which parameters were fitted to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.evidence.published import (
    collective_rows,
    llama_rows,
    megatron_a100_rows,
    summary_rows,
    torchtitan_rows,
    vocabulary_rows,
    zero_bubble_rows,
)
from pipesim.evidence.published.korthikanti_part_rows import activation_rows, layer_rows
from pipesim.evidence.published.published_row import PublishedRow, Quantity, scenario_of
from pipesim.evidence.published.tables import TableLine, read_table, read_table_file
from pipesim.scenario.nearest import did_you_mean


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """One table and one quantity of it.

    Parameters
    ----------
    name : str
        As on the command line.
    title : str
        What was measured, where, by whom.
    table : str
        File in the package.
    quantity : str
        What is compared, with its SI unit.
    read : Callable
        From the table's lines to rows.
    fitted : tuple of str
        What was fitted on half of this set's rows, efficiency presets or the factor on pass times; empty
        where no parameter has seen a row.
    """

    name: str
    title: str
    table: str
    quantity: Quantity
    read: Callable[[Iterable[TableLine]], list[PublishedRow]]
    fitted: tuple[str, ...] = ()

    def rows(self, file: str | Path | None = None) -> list[PublishedRow]:
        """Rows of the shipped table, or of a file in the same columns.

        A line that is no row of such a table, or no scenario, is left out with the reason.

        Raises
        ------
        ScenarioError
            If the file cannot be read, or no line of it is a row.
        """
        lines = read_table(self.table) if file is None else read_table_file(file)
        with suppress(ScenarioError):
            rows = [_checked(row) for row in self.read(lines)]
            if file is None or not all((row.left_out or "").startswith(_CONTRADICTS) for row in rows):
                return rows
        rows, errors = [], []
        for line in lines:
            try:
                of_line = [_checked(row) for row in self.read([line])]
                for row in of_line:
                    if row.scenario is not None and (row.left_out or "").startswith(_CONTRADICTS):
                        errors.append(ScenarioError(str(row.left_out), file=line.file))
                        break
                rows += of_line
            except ScenarioError as error:
                errors.append(error)
                label, source = f"line {line.number}", line.get("source") or line.file
                rows.append(PublishedRow(label, None, math.nan, source, left_out=error.message))
        if len(errors) == len(lines):
            raise errors[0]
        return rows

    def fits(self, row: PublishedRow) -> bool:
        """Whether what was fitted on this set is what predicts a row."""
        preset = preset_of(row)
        return bool(self.fitted) if preset is None else preset in self.fitted


_CONTRADICTS = "cannot be modelled"


def preset_of(row: PublishedRow) -> str | None:
    """Efficiency preset that predicts a row; None where its times are stated."""
    efficiency = (row.scenario or {}).get("efficiency")
    if isinstance(efficiency, Mapping):
        return str(efficiency["preset"])
    return efficiency


def _checked(row: PublishedRow) -> PublishedRow:
    """Leave a row out whose scenario contradicts itself."""
    if row.scenario is None or row.left_out:
        return row
    try:
        scenario_of(row)
    except ScenarioError as error:
        return replace(row, left_out=f"{_CONTRADICTS}: {error}")
    return row


_ZERO_BUBBLE = "zero_bubble_tables_4_5_9.csv"
_VOCABULARY = "vocab_parallelism_1f1b_vhalf.csv"

SETS: Mapping[str, PublishedSet] = {
    one.name: one
    for one in (
        PublishedSet(
            "korthikanti",
            "Megatron-LM 2022 on A100, 22B to 1T (arXiv 2205.05198, table 5)",
            "korthikanti22_table5.csv",
            "step_time_s",
            megatron_a100_rows.korthikanti,
            ("a100-megatron-2022",),
        ),
        PublishedSet(
            "sc21",
            "Megatron-LM 2021 on A100, 1.7B to 1T (arXiv 2104.04473, table 1)",
            "megatron_sc21_table1.csv",
            "step_time_s",
            megatron_a100_rows.sc21,
            ("a100-megatron-2021",),
        ),
        PublishedSet(
            "vtrain",
            "Megatron-DeepSpeed on up to 512 A100 (vTrain's multi-node runs)",
            "vtrain_multi_node_a100.csv",
            "step_time_s",
            megatron_a100_rows.vtrain,
            ("a100-megatron-deepspeed-vtrain",),
        ),
        PublishedSet(
            "bloom",
            "Megatron-DeepSpeed on 384 A100 (BLOOM's topology grid)",
            "bigscience_bloom_a100.csv",
            "step_time_s",
            megatron_a100_rows.bloom,
            ("a100-megatron-deepspeed-bloom",),
        ),
        PublishedSet(
            "bloom-batches",
            "one configuration of BLOOM's grid with four batches",
            "bigscience_bloom_batch_sweep.csv",
            "step_time_s",
            megatron_a100_rows.bloom_batches,
            ("a100-megatron-deepspeed-bloom",),
        ),
        PublishedSet(
            "nvidia",
            "NeMo on up to 2,304 H100 and 512 GB200, dense and Grok-1 (DGX Cloud Benchmarking)",
            "dgxc_benchmarking_step_times.csv",
            "step_time_s",
            llama_rows.nvidia,
            ("h100-nemo", "b200-nemo"),
        ),
        PublishedSet(
            "bridge",
            "NeMo and Megatron-Bridge on H100 to GB300, dense and MoE (performance summaries)",
            "nvidia_bridge_perf.csv",
            "step_time_s",
            summary_rows.summaries,
            ("h100-nemo", "h100-nemo-2024", "b200-nemo", "b200-nemo-graphs"),
        ),
        PublishedSet(
            "mlperf",
            "NeMo on up to 6,144 H100, GPT-3 175B in fp8 (MLPerf training v3.0 to v4.1)",
            "mlperf_gpt3_llama405b.csv",
            "step_time_s",
            llama_rows.mlperf,
            ("h100-nemo",),
        ),
        PublishedSet(
            "simumax",
            "Megatron-LM 0.14 on 8 B200, cut-down Llama 3 (SimuMax)",
            "simumax_b200.csv",
            "step_time_s",
            llama_rows.simumax,
            ("b200-megatron",),
        ),
        PublishedSet(
            "zero-bubble",
            "zero-bubble schedules on A100, from the printed pass times (arXiv 2401.10241)",
            _ZERO_BUBBLE,
            "step_time_s",
            zero_bubble_rows.pass_times,
            ("zero-bubble-pass-times",),
        ),
        PublishedSet(
            "zero-bubble-hardware",
            "zero-bubble schedules on A100, from the hardware alone (arXiv 2401.10241)",
            _ZERO_BUBBLE,
            "step_time_s",
            zero_bubble_rows.from_hardware,
        ),
        PublishedSet(
            "zero-bubble-few",
            "the same with few microbatches (tables 10 and 12)",
            "zero_bubble_tables_10_12.csv",
            "step_time_s",
            zero_bubble_rows.from_hardware,
        ),
        PublishedSet(
            "vocabulary",
            "1F1B on A100 with vocabularies of 32k to 256k (arXiv 2411.05288)",
            _VOCABULARY,
            "step_time_s",
            vocabulary_rows.step_times,
            ("a100-megatron-2024",),
        ),
        PublishedSet(
            "torchtitan",
            "torchtitan on H100 96 GB (benchmark pages)",
            "torchtitan.csv",
            "step_time_s",
            torchtitan_rows.torchtitan,
            ("h100-torchtitan", "h100-torchtitan-eager"),
        ),
        PublishedSet(
            "meta",
            "Llama 3 405B on up to 16,384 H100 (arXiv 2407.21783, table 4)",
            "llama3_405b_meta.csv",
            "step_time_s",
            torchtitan_rows.meta,
        ),
        PublishedSet(
            "korthikanti-layers",
            "one layer of the 22B model (arXiv 2205.05198, table 4)",
            "korthikanti22_table4_layer_times.csv",
            "layer_time_s",
            layer_rows,
        ),
        PublishedSet(
            "korthikanti-memory",
            "activations of the first rank's layers (arXiv 2205.05198, figures 1 and 7)",
            "korthikanti22_memory.csv",
            "activation_bytes",
            activation_rows,
        ),
        PublishedSet(
            "simumax-memory",
            "peak allocation of SimuMax's runs",
            "simumax_b200.csv",
            "peak_memory_bytes",
            llama_rows.simumax_memory,
        ),
        PublishedSet(
            "zero-bubble-memory",
            "peak memory of the zero-bubble runs, printed in whole GB",
            _ZERO_BUBBLE,
            "peak_memory_bytes",
            zero_bubble_rows.memory,
        ),
        PublishedSet(
            "vocabulary-memory",
            "peak memory of the vocabulary runs",
            _VOCABULARY,
            "peak_memory_bytes",
            vocabulary_rows.memory,
        ),
        PublishedSet(
            "collectives",
            "nccl-tests on A100, H100, H200, B200",
            "nccl_bandwidth.csv",
            "collective_time_s",
            collective_rows.collectives,
        ),
    )
}


def published_set(name: str) -> PublishedSet:
    """Look a set up; case and underscores are forgiven.

    Raises
    ------
    ScenarioError
        If there is none of that name.
    """
    plain = name.strip().lower().replace("_", "-")
    if plain not in SETS:
        raise ScenarioError(
            f"no published set is called {name!r}{did_you_mean(plain, list(SETS))}; "
            f"there are: {', '.join(SETS)}"
        )
    return SETS[plain]
