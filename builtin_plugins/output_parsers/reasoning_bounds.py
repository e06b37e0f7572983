"""Where the reasoning of an output lies. Plain data, which routes send with a request."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

REASONING_BOUNDS: Final = "reasoning_bounds"
"""Keyword of `generate`, and name of the message to scheduler halves."""


class ReasoningBounds(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Texts around the reasoning of one output.

    Stop strings and constraints apply to the text after it.
    """

    ends: tuple[str, ...]
    """Texts that end reasoning."""
    starts: tuple[str, ...] = ()
    """Texts that start reasoning."""
    at_start: Literal["inside", "optional", "outside"] = "inside"
    """Whether the output starts inside of reasoning; `optional`: if its first text is a start."""
    calls: tuple[str, ...] = ()
    """Texts that start a tool call instead of the answer: no constraint applies to what follows."""
    resumes: bool = False
    """Reasoning may start again within the answer."""
