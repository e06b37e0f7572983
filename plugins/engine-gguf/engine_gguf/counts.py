"""Numbers out of a config that anybody may have written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def count(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of these fields that is a count; 0 without one, for the model itself refuses
    what is none.
    """
    return next(
        (config[name] for name in names if type(config.get(name)) is int and config[name] > 0), 0
    )
