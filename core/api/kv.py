"""The free blocks of a KV pool, which eviction orders replace, and the chain of prefix keys."""

from core.kv.pool import FreeBlocks
from core.kv.prefix import chain_root, extend_chain, span_extra_keys

__all__ = ["FreeBlocks", "chain_root", "extend_chain", "span_extra_keys"]
