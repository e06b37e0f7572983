"""The contract of eviction orders, with the promises of `core.api`."""

from builtin_plugins.kv_eviction.contract import EvictionOrder, KVEviction, Retention

__all__ = ["EvictionOrder", "KVEviction", "Retention"]
