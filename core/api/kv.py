"""Contracts of the eviction of KV blocks; `builtin_plugins.kv_connectors.api` has connectors."""

from core.contracts.kv import EvictionOrder, KVEviction, Retention

__all__ = ["EvictionOrder", "KVEviction", "Retention"]
