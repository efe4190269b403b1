"""What the columns of `compare` mean, for its help."""

from __future__ import annotations

COLUMNS = {
    "v": "chunks: stages that a rank holds",
    "makespan": "first start to last end over all ranks, before gradient synchronisation",
    "step time": "makespan + exposed gradient synchronisation + optimizer",
    "bubble ratio": "idle / (p * makespan), from 0 to 1",
    "bubble overhead": "(makespan - ideal) / ideal, ideal = mean busy time of a rank; (p-1)/m for 1F1B",
    "span bubble": "1 - mean busy time / longest first start to last end of a single rank",
    "peak in flight": "most chunks (or slices of them) of which a rank holds activations",
    "peak memory": "most bytes on a device: weights, gradients, optimizer, activations",
    "fits": "whether every rank's peak memory is within its device's",
    "p2p sent": "bytes sent to other ranks in a step, by one device of each rank together",
    "MFU": "model FLOPs a second / the devices' peak; full attention counted, recomputation not",
    "synchronous": "NO: gradients arrive after later updates, see the notes below the table",
}


def epilog() -> str:
    """Lay the words out for a help text; its first line keeps click from joining the others."""
    width = max(map(len, COLUMNS))
    lines = [f"{name:{width}}  {words}" for name, words in COLUMNS.items()]
    return "\n".join(["\b", "Columns:", *lines])
