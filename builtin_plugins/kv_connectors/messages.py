"""What the halves tell each other. Plain msgspec structs."""

from __future__ import annotations

from typing import Final

import msgspec

from core.api import BlockKey

NAME: Final = "kv_connectors"


def name_of(place: int) -> str:
    """Return what a tier's halves are called, by its place in the order in which tiers are asked."""
    return f"{NAME}_{place + 1}" if place else NAME


class Order(msgspec.Struct, array_like=True, frozen=True):
    """A block of the cache to be written to the store, or read from it."""

    id: int
    key: BlockKey
    block: int
    source: bytes = b""
    """Where it is read from, if that is not the rank's own store."""


class Look(msgspec.Struct, array_like=True, frozen=True):
    """The question which of these blocks a rank's store has, whoever wrote them."""

    id: int
    keys: list[BlockKey]


class Orders(msgspec.Struct, array_like=True, frozen=True):
    """What begins with a step.

    A block is dropped before others are written; none of those that are read is dropped.
    """

    reads: list[Order] = []
    writes: list[Order] = []
    drops: list[BlockKey] = []
    version: int = 0
    """Of the weights, as far as the half beside the scheduler knows (`Refilled`)."""
    looks: list[Look] = []


UNLIKE: Final = "SetUpOtherwise: "
"""What errors begin with of engines whose blocks mean something else here; behind it stands in what
they differ.
"""
OTHER_WEIGHTS: Final = "the weights were changed"
"""What is said of orders of before; it is nobody's fault."""


class Refilled(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A rank's weights were filled again: blocks of before are of other weights."""

    rank: int
    version: int
    domain: bytes
    """What tells the keys of blocks from now on from those of before: nobody knows which weights
    these are.
    """


class Opened(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A rank's store can be asked from now on."""

    rank: int


class Found(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Blocks that a rank's store has of its own accord, the least recently used first."""

    rank: int
    keys: list[BlockKey]


class Looked(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The answer to `Look`; where something went wrong, which blocks there are is not known."""

    rank: int
    id: int
    keys: list[BlockKey]
    error: str = ""


class Moved(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Orders that a rank is done with, and what went wrong with some of them."""

    rank: int
    ids: list[int]
    errors: dict[int, str] = {}


class Late(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Orders that a rank should have been done with. It may still work on them, and touches none of
    their blocks; in the
    end it says `Moved`, or `Looked`, of them, too."""

    rank: int
    ids: list[int]


Told = Opened | Found | Looked | Moved | Late | Refilled
