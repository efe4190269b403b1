"""Numbers out of a Hugging Face ``config.json``, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipesim.errors import ScenarioError


def count(
    config: Mapping[str, Any],
    key: str,
    file: str,
    *,
    names: tuple[str, ...] = (),
    required: bool = False,
    at_least: int = 1,
) -> int | None:
    """Read a whole number that stands under the first of several names.

    Parameters
    ----------
    config : Mapping
        The configuration.
    key : str
        The name, where `names` does not give several.
    file : str
        For messages.
    names : tuple of str
        Names to look for, in this order.
    required : bool
        Whether it must be there.
    at_least : int
        The smallest legal value.

    Returns
    -------
    int or None
        None where no name is there or the value is null.

    Raises
    ------
    ScenarioError
        Missing though required, or no such number.
    """
    names = names or (key,)
    present = [name for name in names if config.get(name) is not None]
    if not present:
        if required:
            also = f" (nor is there {' or '.join(names[1:])})" if names[1:] else ""
            raise ScenarioError(f"missing{also}", file=file, key=names[0])
        return None
    name, value = present[0], config[present[0]]
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ScenarioError(
            f"found {value!r}; a whole number of at least {at_least} is needed", file=file, key=name
        )
    return value


def flag(config: Mapping[str, Any], key: str, default: bool, file: str) -> bool:
    """Read true or false; raise ScenarioError for anything else."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ScenarioError(f"found {value!r}; true or false is needed", file=file, key=key)
    return value
