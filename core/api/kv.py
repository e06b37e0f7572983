"""The free blocks of a KV pool, which eviction orders replace."""

from core.kv.pool import FreeBlocks

__all__ = ["FreeBlocks"]
