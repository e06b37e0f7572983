"""The list of what plugins should stop using.

An item stays for one version of the contracts, then it is removed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Deprecation:
    """One thing that goes away."""

    api: int
    """`API_VERSION` that does without it; entries written for an earlier one may still use it."""
    what: str
    instead: str
    gone: str
    """Version of the engine from which on it may be missing."""
    method: str = ""
    """A plugin that defines a method or function of this name uses it ..."""
    parameter: str = ""
    """... if it has this parameter, where one is named."""
    name: str = ""
    """A plugin that imports this uses it: `core.api.Name`."""


ROWS_OF_A_CUT_TENSOR: Final = (
    "load(layer, suffix, tensor, rows) gets tensors that are cut along their first axis, which "
    "packed, transposed and "
    "block-scaled formats do not stand; write load(layer, suffix, tensor, part) with core.api.Part "
    "and cut there."
)
"""Said of quantization methods written before `Part`; they still load."""

DEPRECATIONS: Final = (
    Deprecation(
        api=2,
        what="extra_tokens(request) of a scheduler extension",
        instead="write guesses(rows)",
        gone="0.3",
        method="extra_tokens",
    ),
    Deprecation(
        api=2,
        what="load(layer, suffix, tensor, rows) of a quantization method",
        instead="write load(layer, suffix, tensor, part) with core.api.Part",
        gone="0.3",
        method="load",
        parameter="rows",
    ),
)


def advice(api: int) -> str:
    """Return what an entry written for version `api` should change."""
    found = [f"{item.what}: {item.instead}" for item in DEPRECATIONS if item.api > api]
    return "; ".join(found) or "nothing it uses has changed"


def by_request(extra_tokens: Callable[[Any], int]) -> Callable[[Any], list[int]]:
    """Return `guesses(rows)` of a scheduler extension, made of the older method that is asked about
    one request at a time.
    """
    warnings.warn(
        "extra_tokens(request) is deprecated; write guesses(rows)", DeprecationWarning, stacklevel=2
    )

    def guesses(rows: Any) -> list[int]:
        return [extra_tokens(rows.request(row)) for row in rows.rows.tolist()]

    return guesses
