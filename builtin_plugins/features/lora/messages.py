"""What the halves tell each other."""

from __future__ import annotations

import msgspec


class Wanted(msgspec.Struct, array_like=True, frozen=True):
    """An adapter, as a request carries it."""

    digest: bytes
    """Of its content, which is what it is known by everywhere but at the edge."""
    folder: str
    name: str


class News(msgspec.Struct, array_like=True, frozen=True):
    """What a step changes: to the worker halves."""

    load: list[Wanted] = []
    """To be read beside the steps."""
    drop: list[bytes] = []
    """To be forgotten."""
    slots: list[tuple[int, bytes]] = []
    """Slots, and the adapters that are in them from this step on."""
    rows: list[tuple[int, int]] = []
    """Rows, and their slots from this step on; -1: none."""


class Told(msgspec.Struct, array_like=True, frozen=True):
    """What became of a load on one rank."""

    digest: bytes
    rank: int
    error: str = ""
    unplaced: list[str] = []
    """Tensors without a place on this rank."""
    num_bytes: int = 0


class Held(msgspec.Struct, frozen=True):
    """How an adapter stands: what the call `lora.list` answers, as JSON."""

    name: str
    digest: str
    state: str
    """"loading", "ready" or "failed"."""
    error: str = ""
    slot: int = -1
    pinned: bool = False
    running: int = 0
    """Requests that hold it."""
    waiting: int = 0
    num_bytes: int = 0
