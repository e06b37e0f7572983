"""LMCache's storage manager on this rank: memory (L1), and the adapters of what lies behind it
(L2).
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from builtin_plugins.kv_connectors.api import EXTRA, FLAG
from core.api import ConfigError
from engine_lmcache.objects import ALIGN_BYTES

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
        f"the KV connector lmcache: the package lmcache is installed and cannot be loaded: {error}."
    ) from error


@dataclass(frozen=True, slots=True)
class Opening:
    """What a rank opens."""

    l1_bytes: int
    adapters: Sequence[dict[str, Any]]
    """As LMCache describes them."""
    timeout_s: float


def opened(wanted: Opening) -> Any:
    """Return a storage manager. Raises `ConfigError` naming what cannot be used."""
    adapters = [_adapter(place, each) for place, each in enumerate(wanted.adapters)]
    memory = L1MemoryManagerConfig(
        wanted.l1_bytes, use_lazy=False, align_bytes=ALIGN_BYTES, shm_name=""
    )
    # What makes room in L1 is the store itself: LMCache looks once a second, and a burst of blocks
    # does not wait so long.
    config = StorageManagerConfig(
        L1ManagerConfig(memory, read_ttl_seconds=int(10 * wanted.timeout_s) + 1),
        EvictionConfig("noop"),
        L2AdaptersConfig(adapters),
    )
    try:
        return StorageManager(config)
    except Exception as error:  # adapters raise whatever their libraries do
        raise ConfigError(
            f"{FLAG}.{EXTRA}: LMCache cannot begin with l1_size_gb and l2_adapters as they are: "
            f"{_said(error)}."
        ) from error


def _adapter(place: int, given: dict[str, Any]) -> Any:
    try:
        (adapter,) = parse_args_to_l2_adapters_config(
            Namespace(l2_adapter=[json.dumps(given)])
        ).adapters
    except (
        Exception
    ) as error:  # a missing library of an adapter's, an unknown type, a field that is wrong
        raise ConfigError(
            f"{FLAG}.{EXTRA}.l2_adapters[{place}] of type {given['type']!r}: {_said(error)}."
        ) from error
    return adapter


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".")
