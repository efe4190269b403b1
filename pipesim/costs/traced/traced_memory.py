"""Activations of a stage of traced layers: what a microbatch keeps, and what an operation needs on top."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipesim.costs.traced.layer_trace import LayerTrace


def stage_bytes(
    layers: Sequence[LayerTrace],
    loss: LayerTrace | None,
    *,
    recompute: bool,
    handed_on: Collection[int] = (),
    taken_bytes: int = 0,
) -> tuple[float, float]:
    """Bytes that a stage holds for one microbatch, and needs on top while it runs one.

    Held are the stage's input and output and what autograd saves, each storage once; with recomputation the
    inputs of the layers in place of what they save.

    Parameters
    ----------
    layers : sequence of LayerTrace
        At least one.
    loss : LayerTrace, optional
        On the last stage; it is never recomputed.
    recompute : bool
        Whether the backward runs layers again.
    handed_on : collection of int
        Layers whose output goes through a skip connection, to another stage or to a layer of this one that
        needs it in its backward: it is held too.
    taken_bytes : int
        Of what comes from other stages through skip connections, held as the stage's input is.
    """
    blocks = [*layers, *([] if loss is None else [loss])]
    # Storages between blocks: a block that gives its input back, seen otherwise, makes none.
    place = [0]
    sizes = [layers[0].input_bytes]
    for block in blocks:
        if not block.passes_on:
            sizes.append(block.output_bytes)
        place.append(len(sizes) - 1)
    held = {place[0], place[-1], *(place[at + 1] for at in handed_on)}
    inner = []
    for at, block in enumerate(blocks):
        again = recompute and block is not loss
        inner.append(0 if again else block.inner_bytes)
        if block.saves_input or again:
            held.add(place[at])
        if block.saves_output and not again:
            held.add(place[at + 1])
    own = [
        kept + (sizes[after] if after != before and after in held else 0)
        for kept, before, after in zip(inner, place, place[1:], strict=False)
    ]
    working = 0
    for at, block in enumerate(blocks):
        # Ends that nobody keeps are there in the forward only.
        passing = sum(sizes[end] for end in {place[at], place[at + 1]} - held)
        most = max(block.forward.peak_bytes + passing, block.backward.peak_bytes)
        # What later blocks keep is not there yet, or no longer.
        working = max(working, most - inner[at] - sum(own[at + 1 :]))
    return float(sizes[0] + taken_bytes + sum(own)), float(working)
