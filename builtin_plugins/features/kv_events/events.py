"""Events in vLLM's format: msgpack arrays with a tag before the fields of each event.

New fields are only added at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from core.model_spec.kv import (
    CacheSpec,
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    IndexKeys,
    KVLayout,
    LatentKeys,
    RecurrentState,
    SlidingLatents,
    SlidingRows,
    SlidingWindow,
)

BlockHash = int | bytes
DEVICE: Final = "GPU"
"""vLLM's name of the device cache, on every device."""
KINDS: Final[Mapping[type[CacheSpec], str]] = {
    FullAttention: "full_attention",
    LatentKeys: "mla_attention",
    IndexKeys: "mla_attention",
    SlidingWindow: "sliding_window",
    SlidingLatents: "sliding_window",
    SlidingRows: "sliding_window",
    ChunkedLocal: "chunked_local_attention",
    CrossAttention: "cross_attention",
    RecurrentState: "mamba",
}


class BlockStored(msgspec.Struct, array_like=True, gc=False, tag=True):
    """Consecutive blocks of one prompt were stored."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    """Hash of the block before the first; None: the first of the prompt, or unknown."""
    token_ids: list[int]
    """Tokens of all blocks; empty if unknown, as for tiers."""
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, array_like=True, gc=False, tag=True):
    """Blocks were removed."""

    block_hashes: list[BlockHash]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, array_like=True, gc=False, tag=True):
    """All blocks were removed."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    """The events since the previous batch."""

    ts: float
    """Unix time in seconds."""
    events: list[Event]
    data_parallel_rank: int | None = None


class Stored(NamedTuple):
    """Change: consecutive blocks of one KV group were stored."""

    medium: str
    group: int
    keys: list[bytes]
    parent: bytes | None
    tokens: list[int]


class Removed(NamedTuple):
    """Change: a block was removed."""

    medium: str
    group: int
    key: bytes


class Cleared(NamedTuple):
    """Change: all blocks were removed."""


Change = Stored | Removed | Cleared


class EventEncoder:
    """Converts changes to events."""

    def __init__(self, layout: KVLayout, *, as_bytes: bool) -> None:
        self._as_bytes = as_bytes
        self._groups = [
            (group.block_size, KINDS[type(group.spec)], getattr(group.spec, "window", None))
            for group in layout.groups
        ]

    def events(self, changes: Iterable[Change]) -> list[Event]:
        """Return the fewest events that describe the changes in order."""
        events: list[Event] = []
        for change in changes:
            if isinstance(change, Cleared):
                events = [AllBlocksCleared()]  # it makes all earlier events redundant
            elif isinstance(change, Removed):
                last = events[-1] if events else None
                if isinstance(last, BlockRemoved) and (last.medium, last.group_idx) == change[:2]:
                    last.block_hashes.append(self._hash(change.key))
                else:
                    events.append(
                        BlockRemoved([self._hash(change.key)], change.medium, change.group)
                    )
            else:
                events.append(self._stored(change))
        return events

    def _stored(self, change: Stored) -> BlockStored:
        size, kind, window = self._groups[change.group]
        return BlockStored(
            [self._hash(key) for key in change.keys],
            None if change.parent is None else self._hash(change.parent),
            change.tokens,
            size,
            lora_id=None,
            medium=change.medium,
            lora_name=None,
            group_idx=change.group,
            kv_cache_spec_kind=kind,
            kv_cache_spec_sliding_window=window,
        )

    def _hash(self, key: bytes) -> BlockHash:
        return key if self._as_bytes else int.from_bytes(key[-8:], "big")
