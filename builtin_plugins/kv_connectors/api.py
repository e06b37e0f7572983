"""What KV connectors of other distributions are written with: their settings, a bounded directory,
names of blocks, and a way for
blocks between engines.

What is here is promised as `core.api` is, and `core.contracts` says what a connector is.
"""

from builtin_plugins.kv_connectors.bounded import BoundedDirectory
from builtin_plugins.kv_connectors.eviction import Name
from builtin_plugins.kv_connectors.names import MAGIC, SEAL_BYTES, Damaged, key_of, path_of
from builtin_plugins.kv_connectors.offload import parts_of
from builtin_plugins.kv_connectors.settings import EXTRA, FLAG, read_extra
from builtin_plugins.kv_connectors.tcp.asking import Wire
from builtin_plugins.kv_connectors.tcp.connector import Settings as WiredSettings
from builtin_plugins.kv_connectors.tcp.wired import Wired

__all__ = [
    "EXTRA",
    "FLAG",
    "MAGIC",
    "SEAL_BYTES",
    "BoundedDirectory",
    "Damaged",
    "Name",
    "Wire",
    "Wired",
    "WiredSettings",
    "key_of",
    "parts_of",
    "path_of",
    "read_extra",
]
