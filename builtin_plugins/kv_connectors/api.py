"""Public API for KV connectors of other distributions, with the promises of `core.api`.

Connector settings, a bounded directory, block file names, and the base of transports between
engines. `core.contracts` defines what a connector is.
"""

from builtin_plugins.kv_connectors.block_files import (
    CHECKSUM_BYTES,
    MAGIC,
    Damaged,
    block_path,
    parse_block_name,
)
from builtin_plugins.kv_connectors.directory import BoundedDirectory, PolicyName
from builtin_plugins.kv_connectors.offload import split_like
from builtin_plugins.kv_connectors.settings import (
    EXTRA,
    FLAG,
    read_extra,
    read_fields,
    require_positive,
    unknown_key,
)
from builtin_plugins.kv_connectors.tcp.client import Transport
from builtin_plugins.kv_connectors.tcp.connector import Settings as TransportSettings
from builtin_plugins.kv_connectors.tcp.transport import TransportConnector

__all__ = [
    "CHECKSUM_BYTES",
    "EXTRA",
    "FLAG",
    "MAGIC",
    "BoundedDirectory",
    "Damaged",
    "PolicyName",
    "Transport",
    "TransportConnector",
    "TransportSettings",
    "block_path",
    "parse_block_name",
    "read_extra",
    "read_fields",
    "require_positive",
    "split_like",
    "unknown_key",
]
