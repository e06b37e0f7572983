"""Opens LMCache's storage manager on a rank: host memory (L1) and adapters (L2)."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from builtin_plugins.kv_connectors.api import EXTRA, FLAG
from core.api import ConfigError
from engine_lmcache.block_objects import ALIGN_BYTES

try:
    from lmcache.v1.distributed.config import (
        EvictionConfig,
        L1ManagerConfig,
        L1MemoryManagerConfig,
        StorageManagerConfig,
    )
    from lmcache.v1.distributed.l2_adapters.config import (
        L2AdaptersConfig,
        parse_args_to_l2_adapters_config,
    )
    from lmcache.v1.distributed.storage_manager import StorageManager
except ImportError as error:
    raise ConfigError(
        f"the KV connector lmcache: the installed package lmcache cannot be loaded: {error}."
    ) from error


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """Settings of one rank's storage manager."""

    l1_bytes: int
    adapters: Sequence[dict[str, Any]]
    """L2 adapters, in LMCache's format."""
    timeout_s: float


def open_manager(settings: ManagerSettings) -> Any:
    """Return a storage manager. Raises `ConfigError` naming an unusable setting."""
    adapters = [_adapter(index, each) for index, each in enumerate(settings.adapters)]
    memory = L1MemoryManagerConfig(
        settings.l1_bytes, use_lazy=False, align_bytes=ALIGN_BYTES, shm_name=""
    )
    # `L1Cache` evicts, because LMCache's own eviction runs only once a second.
    config = StorageManagerConfig(
        L1ManagerConfig(memory, read_ttl_seconds=int(10 * settings.timeout_s) + 1),
        EvictionConfig("noop"),
        L2AdaptersConfig(adapters),
    )
    try:
        return StorageManager(config)
    except Exception as error:  # adapters raise anything
        raise ConfigError(
            f"{FLAG}.{EXTRA}: LMCache cannot start with these l1_size_gb and l2_adapters: "
            f"{_first_line(error)}."
        ) from error


def _adapter(index: int, given: dict[str, Any]) -> Any:
    arguments = Namespace(l2_adapter=[json.dumps(given)])
    try:
        (adapter,) = parse_args_to_l2_adapters_config(arguments).adapters
    except Exception as error:  # a missing library, an unknown type, an invalid field
        raise ConfigError(
            f"{FLAG}.{EXTRA}.l2_adapters[{index}] of type {given['type']!r}: {_first_line(error)}."
        ) from error
    return adapter


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".")
