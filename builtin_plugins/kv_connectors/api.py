"""Public API for KV connectors of other distributions, with the promises of `core.api`.

The contract, connector settings, a bounded directory, block file names, and the base of transports
between engines.
"""

import importlib
from typing import TYPE_CHECKING, Any

from builtin_plugins.kv_connectors.block_files import (
    CHECKSUM_BYTES,
    MAGIC,
    Damaged,
    block_path,
    parse_block_name,
)
from builtin_plugins.kv_connectors.contract import (
    BlockKey,
    KVConnector,
    KVDirectory,
    KVMemory,
    KVStore,
    KVTransferConfig,
    RemoteKVConnector,
    RemoteKVDirectory,
    RemoteKVStore,
    StoreParts,
    TierListener,
    tier_listeners,
)
from builtin_plugins.kv_connectors.directory import BoundedDirectory, PolicyName
from builtin_plugins.kv_connectors.settings import (
    EXTRA,
    FLAG,
    read_extra,
    read_fields,
    require_positive,
    unknown_key,
)

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.contract import Block, Bytes
    from builtin_plugins.kv_connectors.offload import split_like
    from builtin_plugins.kv_connectors.tcp.client import Transport
    from builtin_plugins.kv_connectors.tcp.connector import Settings as TransportSettings
    from builtin_plugins.kv_connectors.tcp.transport import TransportConnector

__all__ = [
    "CHECKSUM_BYTES",
    "EXTRA",
    "FLAG",
    "MAGIC",
    "Block",
    "BlockKey",
    "BoundedDirectory",
    "Bytes",
    "Damaged",
    "KVConnector",
    "KVDirectory",
    "KVMemory",
    "KVStore",
    "KVTransferConfig",
    "PolicyName",
    "RemoteKVConnector",
    "RemoteKVDirectory",
    "RemoteKVStore",
    "StoreParts",
    "TierListener",
    "Transport",
    "TransportConnector",
    "TransportSettings",
    "block_path",
    "parse_block_name",
    "read_extra",
    "read_fields",
    "require_positive",
    "split_like",
    "tier_listeners",
    "unknown_key",
]


_LAZY = {
    "Transport": ("tcp.client", "Transport"),
    "TransportConnector": ("tcp.transport", "TransportConnector"),
    "TransportSettings": ("tcp.connector", "Settings"),
    "split_like": ("offload", "split_like"),
}


def __getattr__(name: str) -> Any:
    """Import what needs numpy and ZeroMQ when it is first used: plugins are loaded without them."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(importlib.import_module(f"builtin_plugins.kv_connectors.{module}"), attribute)
