"""Makes what an entry stands for: given what its kind offers, as much of it as it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def construct(target: Callable[..., T], *offered: Any) -> T:
    """Return what a class or function makes of the first arguments that are offered, as many as it
    takes by position.
    """
    taken = [p.kind for p in inspect.signature(target).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in taken:
        return target(*offered)
    return target(
        *offered[: sum(kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in taken)]
    )
