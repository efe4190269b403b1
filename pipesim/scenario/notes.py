"""What a resolution inferred, took by default, or warns of: collected on the way, shown to the user."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Notes:
    """Words by dotted key, and warnings in order."""

    echo: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def default(self, key: str, value: object) -> None:
        """Record that `key` was not stated and stands at `value`."""
        self.echo[key] = f"{value} (default)"
