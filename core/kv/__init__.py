"""KV-cache memory: layout, block pools, prefix cache and the leases of
requests. Torch-free.
"""

from core.kv.layout import plan_layout
from core.kv.lease import Hit, Lease
from core.kv.manager import KVManager

__all__ = ["Hit", "KVManager", "Lease", "plan_layout"]
