"""KV connectors, which move cached blocks to other tiers and engines.

A connector moves bytes under keys that the core computes: it can lose blocks, but never
add tokens. The feature `builtin_plugins/features/kv_tiers` decides which blocks move,
when, and whether the bytes that came back are valid.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from core.api import EngineConfig, Registry
    from core.api.models import Model
    from core.model_spec.kv import KVLayout

    Bytes = npt.NDArray[np.uint8]
    """Contiguous bytes in host memory."""
    Block = Sequence[Bytes]
    """A block's bytes on one rank: one contiguous array in host memory per
    layer slot.
    """


class BlockKey(NamedTuple):
    """The key of a full block: its KV group and its prefix hash."""

    group: int
    """Index of the KV group in the layout."""
    key: bytes
    """SHA-256 chain over all tokens up to the end of the block."""


@dataclass(frozen=True, slots=True)
class KVTransferConfig:
    """`--kv-transfer-config`; names as in vLLM."""

    kv_connector: str
    """Entry of kind `kv_connectors`."""
    kv_role: Literal["kv_both", "kv_producer", "kv_consumer"] = "kv_both"
    """kv_producer only stores, kv_consumer only loads."""
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"
    """Action if a request's blocks cannot be loaded."""
    kv_connector_extra_config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the connector itself."""
    max_bytes_per_step: int = 4 << 20
    """Maximum number of bytes per rank to start to transfer in a step with
    computation.
    """
    max_inflight_bytes: int = 256 << 20
    """Bytes per rank in transfer at the same time; their blocks cannot be
    reused meanwhile.
    """
    timeout_s: float = 30.0
    """Seconds after which a waiting request is computed without its remote
    blocks.
    """
    engine_id: str = ""
    """Name of this engine towards others; empty: a generated one."""
    kv_ip: str = "127.0.0.1"
    """Address where other engines reach this one."""
    kv_port: int = 14579
    """Port of the first rank; the others use the following ports."""
    kv_buffer_size: float = 1e9
    """Host memory in bytes for blocks that other engines may fetch, over all
    ranks.
    """


@dataclass(frozen=True, slots=True)
class StoreParts:
    """What a store knows about its rank."""

    layout: KVLayout
    """Layout of the whole cache, as in the scheduler."""
    rank: int
    """Index of this rank among all ranks."""
    num_ranks: int
    """Number of ranks that hold a part of each block, or other blocks."""
    fingerprint: str
    """Hex digest of everything that block bytes depend on, including the
    rank.

    Blocks can be exchanged only between equal fingerprints.
    """
    block_bytes: Sequence[int]
    """Bytes of a block on this rank, per KV group."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Inputs of the fingerprint by name, as JSON values."""


class KVStore(Protocol):
    """The worker half of a connector, on one rank. Any exception means that
    the block is lost.

    `survey`, `write` and `drop` run in one thread, `read` in another. Optional:
    `survey_s`, the interval in seconds between surveys (default: now and then, as
    blocks are written). A connector with `supports_lookup` has `lookup(keys)`: it
    returns which of these blocks exist, and runs in a thread of its own.
    """

    checksum: Literal["sum", "crc32"]
    """Checksum of stored blocks: "sum" (fast word sums) for memory, "crc32"
    for anything else.
    """

    def survey(self) -> Iterable[BlockKey]:
        """Return the blocks that exist already, least recently used first.

        Called repeatedly.
        """

    def write(self, key: BlockKey, block: Block, checksum: bytes) -> None:
        """Store a block and its checksum until `drop`.

        `block` is not used after the call.
        """

    def read(self, key: BlockKey, block: Block) -> bytes:
        """Fill `block` and return the checksum it was written with.

        Raises when the block does not exist; the contents of `block` are then
        undefined.
        """

    def drop(self, key: BlockKey) -> None:
        """Delete a block; the key may be unknown."""

    def close(self) -> None:
        """Stop all background work; no other method runs at the same time or
        later.
        """


class KVMemory(KVStore, Protocol):
    """Optional: a store in this process's memory.

    The transfer thread copies into it and computes the checksum in the same pass,
    instead of calling `write` and `read`. Its checksums are sums.
    """

    def allocate(self, key: BlockKey) -> Bytes:
        """Return memory for a block; `commit` follows."""

    def commit(self, key: BlockKey, buffer: Bytes, checksum: bytes) -> None:
        """Store the filled buffer as this block until `drop`."""

    def locate(self, key: BlockKey) -> tuple[Bytes, bytes]:
        """Return the memory and the checksum of a block. Raises when it does
        not exist.

        The contents are undefined once the block is dropped.
        """


class KVDirectory(Protocol):
    """The scheduler half of a connector: an index of the blocks on all ranks.

    Every method must be quick and runs in the scheduler's thread. Optional:
    `add_found(key)` holds a block that another engine has written, and that takes no
    space of this one (default: it is admitted and marked as stored).
    """

    @property
    def capacity_bytes(self) -> int:
        """Capacity per rank, in bytes."""

    @property
    def num_bytes(self) -> int:
        """Bytes per rank that are stored or reserved."""

    def holds(self, key: BlockKey) -> bool:
        """Return whether a block can be read: `mark_stored` was called for
        it.
        """

    def admit(self, key: BlockKey, pinned: Container[BlockKey]) -> list[BlockKey] | None:
        """Reserve space for a new block; return the blocks to evict, none of
        them `pinned`.

        Returns None when there is no space.
        """

    def mark_stored(self, key: BlockKey) -> None:
        """An admitted block is stored on every rank."""

    def touch(self, key: BlockKey) -> None:
        """A request uses a block; the key may be unknown."""

    def discard(self, key: BlockKey) -> None:
        """An admitted block is missing or invalid; the key may be unknown."""


class KVConnector(Protocol):
    """Target of a `kv_connectors` entry. Constructed with (config, settings)
    next to each half: the `EngineConfig` and the `KVTransferConfig`.

    Optional: `medium`, the name of the tier ("CPU"; default: the connector's name).
    `supports_lookup`: True when other engines write to the tier and it cannot be
    listed; stores are then queried (`lookup`) for each new request, which waits for the
    answer. Raises `ConfigError` for settings that are unknown or unsupported.
    """

    @staticmethod
    def example_settings(folder: str) -> Mapping[str, Any]:
        """Return settings (`kv_connector_extra_config`) for a test with a few
        small blocks.

        `folder` is an empty folder.
        """

    def directory(self, layout: KVLayout, num_ranks: int) -> KVDirectory:
        """Return the scheduler half, for ranks that split every layer."""

    def store(self, parts: StoreParts) -> KVStore:
        """Return the worker half of one rank.

        Raises `ConfigError` to stop the start.
        """

    def host_bytes(self, model: Model, config: EngineConfig) -> int:
        """Return the maximum host memory of this rank, in bytes."""


class RemoteKVStore(KVStore, Protocol):
    """The worker half of a connector between engines."""

    def fetch(self, source: bytes, key: BlockKey) -> tuple[Bytes, bytes]:
        """Return the bytes and the sum of a block from its
        `RemoteKVDirectory.source`.

        The bytes are valid until the next call.
        """


class RemoteKVDirectory(KVDirectory, Protocol):
    """The scheduler half of a connector between engines."""

    def offer(self, blocks: Sequence[int]) -> Mapping[str, Any]:
        """Return the `kv_transfer_params` (JSON) for an engine that continues
        a request.

        `blocks` are the request's full blocks in the first KV group, by position. All
        of them are stored here, or will be soon.
        """

    def expect(self, request_id: str, keys: Iterable[BlockKey], params: Mapping[str, Any]) -> None:
        """Hold the blocks of another engine's offer until `forget`; `params`
        are validated.
        """

    def forget(self, request_id: str) -> None:
        """Release the blocks expected for a request; it may be unknown."""

    def source(self, key: BlockKey) -> bytes:
        """Return the source of a block for `fetch`; empty: the block is in
        the stores.
        """


class RemoteKVConnector(KVConnector, Protocol):
    """A connector between engines."""

    def check(self, params: Mapping[str, Any]) -> None:
        """Raise `InvalidRequest` for `kv_transfer_params` of no engine that
        is allowed here.
        """


TierListener = Callable[[str, BlockKey, bool], None]
"""Receives a tier's medium ("CPU"), a block, and whether the tier now holds
it.

Called in the scheduler's thread, once per change; must be quick.
"""


def tier_listeners(registry: Registry) -> list[TierListener]:
    """Return this process's tier listeners; features add theirs, and tiers
    notify all of them.
    """
    made: list[TierListener] = registry.shared("kv_watchers", list)
    return made
