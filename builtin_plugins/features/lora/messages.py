"""Messages between the halves of the feature."""

from __future__ import annotations

import msgspec


class AdapterRef(msgspec.Struct, array_like=True, frozen=True):
    """An adapter, as a request carries it."""

    digest: bytes
    """Hash of its content, which identifies it outside the frontend."""
    folder: str
    name: str


class StepUpdate(msgspec.Struct, array_like=True, frozen=True):
    """Changes of a step, sent to the worker halves."""

    load: list[AdapterRef] = []
    """Adapters to read in the background."""
    drop: list[bytes] = []
    """Digests of adapters to release."""
    slots: list[tuple[int, bytes]] = []
    """(slot, digest) of slots that change with this step."""
    rows: list[tuple[int, int]] = []
    """(row, slot) of rows that change with this step; -1: no adapter."""


class LoadResult(msgspec.Struct, array_like=True, frozen=True):
    """Result of a load on one rank."""

    digest: bytes
    rank: int
    error: str = ""
    unmatched: list[str] = []
    """Names of tensors without a target on this rank."""
    num_bytes: int = 0


class AdapterStatus(msgspec.Struct, frozen=True):
    """Status of an adapter: the JSON answer of the call `lora.list`."""

    name: str
    digest: str
    state: str
    """"loading", "ready" or "failed"."""
    error: str = ""
    slot: int = -1
    pinned: bool = False
    running: int = 0
    """Number of running requests with the adapter."""
    waiting: int = 0
    num_bytes: int = 0
