"""What devices that share a sequence hand each other for attention, and what of it shows.

c devices, T tokens each, of one microbatch; in brackets Megatron-Core's ``cp_comm_type``
(docs.nvidia.com/nemo/megatron-bridge/latest/training/hybrid-context-parallel.html)::

    ring          (p2p) keys and values go around in c - 1 steps, each beside a c-th of the attention; in the
                  backward their gradients too
    all-gather    keys and values of all are gathered before attention, as Llama 3 does (arXiv 2407.21783,
                  3.3.2); again in the backward, after which their gradients are scattered; nothing beside it
    ulysses       (a2a) all-to-all before attention, so that a device has all positions of its heads, and one
                  after it; the same in the backward; nothing beside it (arXiv 2309.14509)
    hierarchical  (a2a+p2p) all-to-all in inner groups, a ring around the groups
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesim.costs.network.exchange import all_to_all
from pipesim.costs.stages.overlap import exposed_s
from pipesim.costs.transformer.parameters import attention_output_size, key_size, query_size, value_size

if TYPE_CHECKING:
    from pipesim.costs.transformer.layer import Setting

_VALUE_BYTES = 2


def context_exchange_s(
    setting: Setting, attention_s: float, attention_backward_s: float
) -> tuple[float, float]:
    """Time what the exchange adds to a layer's forward and backward, beside attention of so many seconds."""
    link = setting.context_link
    if link is None:
        return 0.0, 0.0
    if setting.context_exchange == "all-gather":
        forward, backward = (
            (setting.context - 1) * float(link.transfer_s(times * keys_and_values_bytes(setting)))
            for times in (1, 2)
        )
        return forward, backward
    by_heads_s, inner = 0.0, 1
    if setting.context_group is not None:
        inner = setting.context_group.num_members
        moved = setting.num_tokens * _VALUE_BYTES / setting.tensor
        of_heads = moved * query_size(setting.model) + keys_and_values_bytes(setting)
        of_output = moved * attention_output_size(setting.model)
        by_heads_s = sum(
            all_to_all(nbytes, setting.context_group).seconds(setting.context_group)
            for nbytes in (of_heads, of_output)
        )
    num_groups = setting.context // inner
    forward, backward = (
        by_heads_s
        + (num_groups - 1)
        * exposed_s(beside_s / num_groups, float(link.transfer_s(moved)), setting.overlap_slowdown)
        for beside_s, moved in (
            (attention_s, keys_and_values_bytes(setting)),
            (attention_backward_s, 2 * keys_and_values_bytes(setting)),
        )
    )
    return forward, backward


def gathered_bytes(setting: Setting) -> float:
    """Bytes of the keys and values of other devices that a device holds while attention runs."""
    if setting.context_link is None or setting.context_exchange != "all-gather":
        return 0.0
    return (setting.context - 1) * keys_and_values_bytes(setting)


def keys_and_values_bytes(setting: Setting) -> float:
    """Bytes of one device's keys and values of a layer, of one microbatch."""
    model, tensor = setting.model, setting.tensor
    width = key_size(model, tensor) + value_size(model, tensor)
    return _VALUE_BYTES * setting.num_tokens * width / tensor
