"""What a rank spends between computations: calls that start its messages, and getting to the next action."""

from __future__ import annotations

from dataclasses import dataclass

from pipesim.costs.network.alpha_beta import Number


@dataclass(frozen=True, slots=True)
class HostCost:
    """Time in which a rank's own host keeps it from computing (LogGP's o and O).

    A message leaves when its computation ends, so the link's latency contains the call; what is stated here
    is how long the sender itself is held up.

    Parameters
    ----------
    per_message_s, per_byte_s : Number
        The call that starts a message: a fixed part, and one that grows with the message.
    per_action_s : Number
        From the end of a computation (and of its sends) to the start of the next.
    meeting_s : Number
        From when the last rank comes to the optimizer until all know it.
    """

    per_message_s: Number = 0
    per_byte_s: Number = 0
    per_action_s: Number = 0
    meeting_s: Number = 0

    def send_s(self, nbytes: Number) -> Number:
        """Seconds that a message of `nbytes` holds up its sender."""
        return self.per_message_s + nbytes * self.per_byte_s
