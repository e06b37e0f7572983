"""Contracts of KV connectors, tiers and eviction."""

from typing import TYPE_CHECKING

from core.contracts.kv import (
    BlockKey,
    EvictionOrder,
    KVConnector,
    KVDirectory,
    KVEviction,
    KVStore,
    KVTransferConfig,
    RemoteKVConnector,
    RemoteKVDirectory,
    Retention,
    StoreParts,
    TierListener,
    tier_listeners,
)

if TYPE_CHECKING:
    from core.contracts.kv import Block, Bytes

__all__ = [
    "Block",
    "BlockKey",
    "Bytes",
    "EvictionOrder",
    "KVConnector",
    "KVDirectory",
    "KVEviction",
    "KVStore",
    "KVTransferConfig",
    "RemoteKVConnector",
    "RemoteKVDirectory",
    "Retention",
    "StoreParts",
    "TierListener",
    "tier_listeners",
]
