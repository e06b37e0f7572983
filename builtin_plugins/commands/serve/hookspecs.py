"""Hook of this plugin: settings of a server that a model comes with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api import hookspec


@hookspec
def engine_serve_defaults(model: str) -> Mapping[str, Any] | None:
    """Return the settings by name that `engine serve` uses for a model unless they are set.

    `model` is the name as given. Implement it with `@hookimpl(optionalhook=True)`: the command may
    be off.
    """
    raise NotImplementedError
