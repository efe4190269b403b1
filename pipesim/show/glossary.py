"""What columns and parts of a step mean, for help texts and reports."""

from __future__ import annotations

from collections.abc import Mapping

from pipesim.ir.actions import Op

COLUMNS = {
    "v": "chunks: stages that a rank holds",
    "makespan": "first start to last end over all ranks, before gradient synchronisation",
    "step time": "makespan + exposed gradient synchronisation + optimizer",
    "bubble ratio": "idle / (p * makespan), from 0 to 1",
    "bubble overhead": "(makespan - ideal) / ideal, ideal = mean busy time of a rank; (p-1)/m for 1F1B",
    "span bubble": "1 - mean busy time / longest first start to last end of a single rank",
    "peak held": "most microbatches whose activations a rank holds; of half of its layers, half a one",
    "peak memory": "most bytes on a device: weights, gradients, optimizer, activations",
    "fits": "whether every rank's peak memory is within its device's",
    "p2p sent": "bytes sent to other ranks in a step, by one device of each rank together",
    "MFU": "model FLOPs a second / the devices' peak; full attention counted, recomputation not",
    "synchronous": "NO: gradients arrive after later updates, see the notes below the table",
}

SCENARIO_FILE = "YAML with the keys of docs/scenario.md"
ORDER_FILE = (
    "CSV as torch.distributed.pipelining writes it: no header, line r is rank r, a cell an action as 2F0"
)
SWEEP_FILE = "a table that `pipesim sweep` wrote, .csv or .parquet"
STEPS_FILE = (
    "CSV with a header: step_time (seconds, or with a unit; empty where a prediction is asked for), scenario "
    "(a file for each line, where --scenario names none for all) and any keys of a scenario, as batch.global"
)
MEASURED_FILES = (
    "runs of `pipesim execute` (JSON); traces of PyTorch's profiler (.json or .json.gz, one a process); "
    "timer dumps of a patched Megatron-LM, one a process "
    "(event_times_PP..._VPP..._pp_rank_..._rank_....json); "
    "logs of Megatron-LM with --timing-log-level 2 --timing-log-option all (.log, .txt, .out); "
    "or folders of these"
)

OPERATIONS = {
    Op.F: "forward",
    Op.B: "full backward",
    Op.I: "input gradient",
    Op.W: "weight gradient",
    Op.OVERLAP_F_B: "forward and backward together",
    Op.SEND_F: "sends activations on",
    Op.RECV_F: "receives activations",
    Op.SEND_B: "sends a gradient back",
    Op.RECV_B: "receives a gradient",
    Op.SEND_SKIP_F: "sends along a skip connection",
    Op.RECV_SKIP_F: "receives along a skip connection",
    Op.SEND_SKIP_B: "sends a skip connection's gradient back",
    Op.RECV_SKIP_B: "receives a skip connection's gradient",
    Op.UNSHARD: "gathers weights",
    Op.RESHARD: "gives gathered weights back",
    Op.REDUCE_GRAD: "gradient synchronisation",
    Op.REDUCE_EMBEDDING: "synchronisation of a tied embedding",
    Op.OPTIMIZER: "optimizer",
}

PARTS = {
    "compute_s": ("computing", "of the model's layers; mean over the ranks"),
    "overhead_s": ("overhead of layers", "fixed time beside a layer's counted work; mean over the ranks"),
    "tensor_parallel_s": ("tensor parallel", "collectives inside layers; mean over the ranks"),
    "other_exchanges_s": ("other exchanges", "of context and expert parallelism; mean over the ranks"),
    "imbalance_s": ("imbalance", "what the busiest rank has to do above the mean of the ranks"),
    "bubble_s": ("idle of the busiest rank", "its warm-up, cool-down and waiting for others to compute"),
    "exposed_p2p_s": ("exposed p2p of the busiest rank", "its waiting for messages under way"),
    "exposed_collective_s": (
        "exposed gathers of the busiest rank",
        "its waiting for shared-out weights, and for tokens held up",
    ),
    "data_parallel_s": ("gradient synchronisation, exposed", "after the last computation of all ranks"),
    "optimizer_s": ("optimizer", "after that"),
    "not_explained_s": ("not explained", "what a measured step time has above all other parts"),
}
"""Parts of the step by their keys in JSON: what tables call them, what they are."""

IMBALANCE = f"imbalance: {PARTS['imbalance_s'][1]}; that rank's own idle and exposed times follow"


def part_name(key: str) -> str:
    """Name a part of the step as tables do."""
    return PARTS[key][0]


def epilog(*, with_parts: bool = False) -> str:
    """Lay the words out for a help text; its first line keeps click from joining the others."""
    text = _paragraph("Columns:", COLUMNS)
    return f"{text}\n\n{_paragraph('Parts of the step:', dict(PARTS.values()))}" if with_parts else text


def _paragraph(heading: str, meanings: Mapping[str, str]) -> str:
    width = max(map(len, meanings))
    return "\n".join(["\b", heading, *(f"{name:{width}}  {words}" for name, words in meanings.items())])
