"""KV connectors: places behind the device's cache that its blocks go to and come back from.

A connector moves bytes under keys that the core has made, so it can lose what it has and never
invent a token. When blocks move, for whom, how many at once, and whether what came back is what was
sent is decided outside of it (`builtin_plugins/kv_connectors`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from core.config import EngineConfig
    from core.contracts.models import Model
    from core.model_spec.kv import KVLayout

    Bytes = npt.NDArray[np.uint8]
    """Contiguous, in host memory."""
    Block = Sequence[Bytes]
    """A block's bytes on one rank: a contiguous array for each of its layer slots, in host memory.
    """


class BlockKey(NamedTuple):
    """The name of a full block: its KV group, and the key of the prefix chain that ends with it."""

    group: int
    """Index of the KV group in the layout."""
    key: bytes
    """The chain's SHA-256 over all tokens up to the block's end."""


@dataclass(frozen=True, slots=True)
class KVTransferConfig:
    """`--kv-transfer-config`; names as in vLLM."""

    kv_connector: str
    """Entry of kind `kv_connectors`."""
    kv_role: Literal["kv_both", "kv_producer", "kv_consumer"] = "kv_both"
    """A producer loads nothing, a consumer stores nothing."""
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"
    """What becomes of a request whose blocks do not come."""
    kv_connector_extra_config: Mapping[str, Any] = field(default_factory=dict)
    """The connector's own settings."""
    step_bytes: int = 4 << 20
    """Bytes that may begin to move with a step that computes, on each rank: more of them, and steps
    wait for memory.
    """
    most_bytes_under_way: int = 256 << 20
    """Bytes that may be on their way at once, on each rank; the blocks they are of are nobody
    else's meanwhile.
    """
    timeout_s: float = 30.0
    """A request that has waited so long for blocks is computed without them."""
    engine_id: str = ""
    """This engine's name among others; empty: one is made up."""
    kv_ip: str = "127.0.0.1"
    """Where other engines find this one; like the next two for connectors between engines."""
    kv_port: int = 14579
    """Of the first rank; the others have those behind it."""
    kv_buffer_size: float = 1e9
    """Bytes of host memory for blocks that other engines may fetch, of all ranks together."""


@dataclass(frozen=True, slots=True)
class StoreParts:
    """What a store knows of the rank it is on."""

    layout: KVLayout
    """Of the whole cache, as the scheduler has it."""
    rank: int
    """This one's, of all ranks."""
    num_ranks: int
    """Ranks that keep a part of each block, or of other blocks."""
    fingerprint: str
    """The same, as hexadecimal digits, wherever bytes of a block mean the same; the rank is part of
    it.
    """
    block_bytes: Sequence[int]
    """What a block has on this rank, by KV group."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the fingerprint stands for, by names that users know: JSON."""


class KVStore(Protocol):
    """The half on a rank. Raises whatever it likes: the block counts as lost.

    `survey`, `write` and `drop` are called in one thread of their own, `read` in another. Optional:
    `survey_s`, seconds after which it is looked through again whatever is written; without it, only
    now and then as it is written to. And `look`, where the connector says `looks`: `look(keys)`
    returns which of these blocks it has, whoever wrote them, in a thread of its own.
    """

    seal: Literal["sum", "crc32"]
    """How it is made sure that what is read is what was written: sums of words at the speed of
    memory, for memory; or
    checksums, for what crosses anything else."""

    def survey(self) -> Iterable[BlockKey]:
        """Return what it has from before, or from others, the least recently used first.

        Called again now and then.
        """

    def write(self, key: BlockKey, block: Block, seal: bytes) -> None:
        """Keep a block and its seal until `drop`.

        Afterwards, or when it has raised, `block` is not looked at again.
        """

    def read(self, key: BlockKey, block: Block) -> bytes:
        """Fill `block` and return the seal it was written with. Raises where it is gone; what is in
        `block` then, does
        not matter."""

    def drop(self, key: BlockKey) -> None:
        """Make room; the key may be unknown."""

    def close(self) -> None:
        """End what works for it; no other method is called at the time or later."""


class KVMemory(KVStore, Protocol):
    """Optional: a store whose blocks lie in this process's memory. Whoever moves one copies it, and
    seals it in the same pass,
    instead of calling `write` and `read`. The seals are sums."""

    def place(self, key: BlockKey) -> Bytes:
        """Return memory for all bytes of a block, which `keep` is about to be called for."""

    def keep(self, key: BlockKey, place: Bytes, seal: bytes) -> None:
        """Its place is filled: keep the block until `drop`."""

    def held(self, key: BlockKey) -> tuple[Bytes, bytes]:
        """Return where a block lies, and its seal.

        Raises where it is gone. What is there once it was dropped, does not matter.
        """


class KVDirectory(Protocol):
    """The half beside the scheduler: what there is, on all ranks. Every method is a moment's work,
    in the scheduler's
    thread; it learns of the stores through what it is told."""

    @property
    def most_bytes(self) -> int:
        """Bytes it may hold, on each rank."""

    @property
    def num_bytes(self) -> int:
        """Bytes it holds or has room made for, on each rank."""

    def holds(self, key: BlockKey) -> bool:
        """Say whether a block can be read: `stored` was called for it."""

    def admit(self, key: BlockKey, pinned: Container[BlockKey]) -> list[BlockKey] | None:
        """Make room for a block it does not hold and return those that go for it, none of `pinned`;
        None: no room.
        """

    def stored(self, key: BlockKey) -> None:
        """A block that was admitted is there, on every rank."""

    def used(self, key: BlockKey) -> None:
        """A request begins with a block; the key may be unknown."""

    def lost(self, key: BlockKey) -> None:
        """A block that was admitted is not there, or not to be trusted; the key may be unknown."""


class KVConnector(Protocol):
    """Target of an entry of kind `kv_connectors`; constructed wherever one of its halves is, with
    (config, settings): the `EngineConfig` and the `KVTransferConfig`.

    Optional: `medium`, what its blocks are said to lie in ("CPU"); without it, the connector's
    name. `looks`: true where others write to a place that cannot be listed, so that stores are
    asked (`look`) for what a request begins with, which waits for the answer. Raises `ConfigError`
    for settings it does not know or cannot serve, naming them.
    """

    @staticmethod
    def trial(folder: str) -> Mapping[str, Any]:
        """Return settings (`kv_connector_extra_config`) to try it with, for a few small blocks;
        `folder` is empty.
        """

    def directory(self, layout: KVLayout, num_ranks: int) -> KVDirectory:
        """Return the half beside the scheduler, for ranks that split every layer."""

    def store(self, parts: StoreParts) -> KVStore:
        """Return the half on one rank.

        Raises `ConfigError` where it cannot work: the engine does not start.
        """

    def host_bytes(self, model: Model, config: EngineConfig) -> int:
        """Return what it takes of this rank's memory, at most."""


class RemoteKVStore(KVStore, Protocol):
    """The half on a rank of a connector between engines."""

    def fetch(self, source: bytes, key: BlockKey) -> tuple[Bytes, bytes]:
        """Return a block from where the half beside the scheduler says it is
        (`RemoteKVDirectory.source`): its bytes, which stay
        until the next call, and its seal, a sum."""


class RemoteKVDirectory(KVDirectory, Protocol):
    """The half beside the scheduler of a connector between engines."""

    def offer(self, blocks: Sequence[int]) -> Mapping[str, Any]:
        """Return what another engine is told (`kv_transfer_params`, JSON) to go on with a request
        whose full blocks are
        these, in the first KV group by position: all of them are stored here, or about to be."""

    def expect(self, request_id: str, keys: Iterable[BlockKey], params: Mapping[str, Any]) -> None:
        """Hold, until `forget`, what another engine has offered by these parameters, which were
        checked.
        """

    def forget(self, request_id: str) -> None:
        """Nobody waits for what was expected for a request; it may be unknown."""

    def source(self, key: BlockKey) -> bytes:
        """Return where a block is that is held: what stores are told in `fetch`.

        Empty: in the stores themselves.
        """


class RemoteKVConnector(KVConnector, Protocol):
    """A connector between engines."""

    def check(self, params: Mapping[str, Any]) -> None:
        """Raise `InvalidRequest` for an offer (`kv_transfer_params`) that no engine has made that
        this one may ask.
        """
