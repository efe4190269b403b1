"""Tokens that a layer with experts sends to them and back: bytes, and seconds alone and beside computing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipesim.costs.network.exchange import Exchange, Sent, all_to_all, expected_places, one_copy
from pipesim.scenario.resolved import Experts

if TYPE_CHECKING:
    from pipesim.costs.transformer.layer import Setting

_WIDE_BYTES = 2


@dataclass(frozen=True, slots=True)
class Moved:
    """What one pass through a layer exchanges.

    Parameters
    ----------
    sent : Sent
        Bytes of a device.
    latency_s, alone_s : float
        Of its exchanges, and with their bytes on an idle network.
    shown_s : float
        Of that, what does not run beside computing.
    """

    sent: Sent
    latency_s: float
    alone_s: float
    shown_s: float

    def beside(self, compute_s: float) -> Moved:
        """Hide no more than lasts as long as what is computed."""
        return replace(self, shown_s=max(self.shown_s, self.alone_s - compute_s))

    def after(self, other: Moved) -> Moved:
        """Add another exchange to this one."""
        return Moved(
            Sent(self.sent.to_others + other.sent.to_others, self.sent.inside + other.sent.inside),
            self.latency_s + other.latency_s,
            self.alone_s + other.alone_s,
            self.shown_s + other.shown_s,
        )


NOTHING_MOVED = Moved(Sent(0.0, 0.0), 0.0, 0.0, 0.0)


def layer_exchange(setting: Setting, experts: Experts) -> tuple[Moved, Moved]:
    """Find what the forward of a layer sends to experts and back, and what its backward does.

    Only the way there can be narrow; the way back, and gradients both ways, have 16 bits.
    """
    group, share = setting.exchange, setting.dispatch_bytes / _WIDE_BYTES
    if group is None:
        return NOTHING_MOVED, NOTHING_MOVED
    if group.one_copy:
        token_bytes = _WIDE_BYTES * setting.num_tokens * setting.model.hidden_size / setting.tensor
        num_nodes = -(-group.num_members // group.num_together)
        hit = expected_places(experts, num_nodes), expected_places(experts, group.num_members)
        wide = one_copy(token_bytes, *hit, group)
    else:
        # Bytes of the tokens that the busiest device gets, or gives back.
        copies = _WIDE_BYTES * setting.num_expert_rows * setting.model.hidden_size / setting.tensor
        wide = all_to_all(copies, group)
    there, back = _moved(wide.scaled(share), group), _moved(wide, group)
    return there.after(back), back.after(back)


def _moved(sent: Sent, group: Exchange) -> Moved:
    alone_s = sent.seconds(group)
    return Moved(sent, group.latency_s, alone_s, (1 - group.hidden) * alone_s)
