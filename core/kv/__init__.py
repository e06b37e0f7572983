"""KV-cache memory: layout, block pools, prefix hash chain, leases of requests. Torch-free."""

from core.kv.layout import plan_layout
from core.kv.manager import Hit, KVManager, Lease

__all__ = ["Hit", "KVManager", "Lease", "plan_layout"]
