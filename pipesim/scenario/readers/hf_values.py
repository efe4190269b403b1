"""Numbers out of a Hugging Face ``config.json``, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipesim.errors import ScenarioError
from pipesim.scenario.readers.values import LARGEST_COUNT, as_count, shown


def count(
    config: Mapping[str, Any],
    key: str,
    file: str,
    *,
    names: tuple[str, ...] = (),
    required: bool = False,
    minimum: int = 1,
    maximum: int = LARGEST_COUNT,
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
    minimum, maximum : int
        The smallest and the largest legal value.

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
    name = next((name for name in names if config.get(name) is not None), None)
    if name is None:
        if required:
            also = f" (nor is there {' or '.join(names[1:])})" if names[1:] else ""
            raise ScenarioError(f"missing{also}", file=file, key=names[0])
        return None
    return as_count(config[name], file=file, key=name, minimum=minimum, maximum=maximum)


def flag(config: Mapping[str, Any], key: str, default: bool, file: str) -> bool:
    """Read true or false; raise ScenarioError for anything else."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ScenarioError(f"found {shown(value)}; true or false is needed", file=file, key=key)
    return value
