"""What a process that computes and the keepers of its grammars say to each other: plain structs in
packets.
"""

from __future__ import annotations

import msgspec

from core.api import Constraint


class Make(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The first message to a keeper: the constraint it keeps."""

    constraint: Constraint
    backends: list[str]
    """Those to ask, best first."""


class Open(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """An output begins, or goes on behind the tokens it has: make its first mask."""

    line: int
    prompt_end: list[int]
    """The last tokens of the prompt: reasoning may end there."""
    output: list[int]
    """Tokens generated so far, by an earlier life or before a preemption."""
    stops: list[int]
    """Tokens that end it."""
    skip_reasoning: bool


class Advance(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """An output goes on by tokens: make its next mask."""

    line: int
    tokens: list[int]


class Points(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """An output is sampled behind guesses, too: make the masks of all these points."""

    line: int
    back: int
    """Tokens of the last step that were not kept after all."""
    tokens: list[int]
    """Tokens that were, and are not known yet."""
    guesses: list[int]


class Close(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """An output has ended; its number may be another's."""

    line: int


ToKeeper = Make | Open | Advance | Points | Close


class Here(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The keeper runs."""

    pid: int


class Checked(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A backend can hold outputs to the constraint, and compiles it now."""

    backend: str


class Made(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The grammar is compiled."""

    used_s: float
    """CPU time of the keeper so far, here and below."""


class Refused(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The constraint cannot be served. The keeper ends."""

    field: str
    """The request's field that is wrong; empty where something else is."""
    message: str


class Masked(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """An output's mask lies in the shared memory."""

    line: int
    work_s: float
    """CPU time it took."""
    used_s: float
    more: list[bytes]
    """The masks behind guesses."""
    error: str = ""
    """What went wrong instead."""


class Closed(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Nothing of an output is left here."""

    line: int


FromKeeper = Here | Checked | Made | Refused | Masked | Closed
