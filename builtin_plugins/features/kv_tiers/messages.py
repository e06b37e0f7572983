"""Messages between the scheduler half and the worker half of a KV tier."""

from __future__ import annotations

from typing import Final

import msgspec

from builtin_plugins.kv_connectors.api import BlockKey

NAME: Final = "kv_connectors"
"""Name of the first tier's extension, and of the feature in requests."""


def tier_name(index: int) -> str:
    """Return the extension name of a tier. `index`: its position in lookup order."""
    return f"{NAME}_{index + 1}" if index else NAME


class BlockTransfer(msgspec.Struct, array_like=True, frozen=True):
    """One cache block to write to the store, or to read from it."""

    id: int
    key: BlockKey
    block: int
    source: bytes = b""
    """Remote engine to read from; empty: the rank's own store."""


class LookupRequest(msgspec.Struct, array_like=True, frozen=True):
    """A request to report which of these blocks a rank's store has."""

    id: int
    keys: list[BlockKey]


class TransferPlan(msgspec.Struct, array_like=True, frozen=True):
    """Transfers that begin with a step.

    Drops are executed before writes. No block is both read and dropped.
    """

    reads: list[BlockTransfer] = []
    writes: list[BlockTransfer] = []
    drops: list[BlockKey] = []
    weights_version: int = 0
    """Weights version known to the scheduler half (`WeightsReloaded`)."""
    lookups: list[LookupRequest] = []


class WeightsReloaded(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The rank's weights changed, so earlier blocks no longer match."""

    rank: int
    version: int
    domain: bytes
    """Random salt that separates the keys of later blocks from those of earlier ones."""


class StoreOpened(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The rank's store is ready."""

    rank: int


class BlocksFound(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Blocks already in the rank's store, least recently used first."""

    rank: int
    keys: list[BlockKey]


class LookupResult(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The answer to a `LookupRequest`. With an error, `keys` is empty."""

    rank: int
    id: int
    keys: list[BlockKey]
    error: str = ""


class TransfersDone(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Transfers that the rank has finished, with the errors of those that failed."""

    rank: int
    ids: list[int]
    errors: dict[int, str] = {}


class TransfersTimedOut(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Transfers and lookups of the rank that exceeded `timeout_s`.

    The rank may still work on them, without touching their cache blocks. It reports
    `TransfersDone` or `LookupResult` for each in the end.
    """

    rank: int
    ids: list[int]


WorkerMessage = (
    StoreOpened | BlocksFound | LookupResult | TransfersDone | TransfersTimedOut | WeightsReloaded
)
