"""Connector `lmcache`: its settings and sizes. LMCache is loaded when a rank opens its store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.kv_connectors.api import (
    EXTRA,
    FLAG,
    BoundedDirectory,
    KVTransferConfig,
    PolicyName,
    StoreParts,
    read_extra,
)
from core.api import ConfigError, EngineConfig
from core.model_spec.kv import KVLayout
from engine_lmcache.block_objects import ALIGN_BYTES, padded
from engine_lmcache.vllm_settings import convert_settings

if TYPE_CHECKING:
    from engine_lmcache.store import LMCacheStore

LOSSLESS: Final = ("aesgcm",)
"""LMCache serializers (`serde`) that return the same bytes."""
ENVIRONMENT: Final = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR"}
"""Environment variables that LMCache reads on import: no usage reports, no log line per block."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own settings; named as in LMCache."""

    l1_size_gb: float = 5.0
    """GiB of host memory, of all ranks together."""
    l2_adapters: list[dict[str, Any]] = field(default_factory=list)
    """Second-level storage, in the format of LMCache's `--l2-adapter`."""
    max_bytes: int = 64 << 30
    """Bytes of second-level storage, of all ranks together."""
    eviction_policy: PolicyName = "lru"
    request_timeout_s: float = 10.0
    """Timeout of LMCache operations, in seconds."""


class LMCache:
    """Connector `lmcache`."""

    medium: Final = "LMCACHE"

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        parallel = config.parallel
        self._stages = parallel.pipeline_parallel_size
        self._num_ranks = parallel.tensor_parallel_size * self._stages
        own = convert_settings(settings.kv_connector_extra_config, self._num_ranks)
        self._own = read_extra(Settings, replace(settings, kv_connector_extra_config=own))
        for name in ("l1_size_gb", "max_bytes", "request_timeout_s"):
            value = getattr(self._own, name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"{FLAG}.{EXTRA}.{name}: got {value}; expected more than 0.")
        if self._l1_bytes < ALIGN_BYTES:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.l1_size_gb: got {self._own.l1_size_gb}; expected GiB for one "
                "block or more."
            )
        for index, each in enumerate(self._own.l2_adapters):
            _check_adapter(f"{FLAG}.{EXTRA}.l2_adapters[{index}]", each)
        self.supports_lookup = bool(self._own.l2_adapters)
        """True with L2: other engines write to it, and it cannot be listed."""

    @property
    def _l1_bytes(self) -> int:
        """Bytes of L1 on each rank."""
        return int(self._own.l1_size_gb * (1 << 30)) // self._num_ranks

    @staticmethod
    def example_settings(folder: str) -> Mapping[str, Any]:
        """Return settings with a little memory, and the folder as L2."""
        return {
            "l1_size_gb": 2**-9,
            "l2_adapters": [{"type": "fs", "base_path": folder}],
            "max_bytes": 1 << 16,
        }

    def directory(self, layout: KVLayout, num_ranks: int) -> BoundedDirectory:
        """Return a directory with this rank's share of L2, or of L1 without L2."""
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        capacity = self._own.max_bytes // num_ranks
        if not self._own.l2_adapters:
            # L1 pads objects. An object holds the stage's layers of a block.
            used_share = min(
                num_bytes / self._stages / padded(num_bytes // self._stages)
                for num_bytes in group_bytes
            )
            capacity = int(self._l1_bytes * self._stages * used_share)
        return BoundedDirectory(capacity, group_bytes, self._own.eviction_policy)

    def store(self, parts: StoreParts) -> LMCacheStore:
        """Return this rank's store. Raises `ConfigError` if LMCache or an adapter is unusable."""
        # Two blocks: one is copied to L2 while another arrives.
        min_bytes = 2 * max(padded(num_bytes) for num_bytes in parts.block_bytes)
        if self._l1_bytes < min_bytes:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.l1_size_gb: got {self._own.l1_size_gb}, which is "
                f"{self._l1_bytes} bytes on each rank; expected {min_bytes} bytes or more, for "
                "two blocks."
            )
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # lazy: LMCache loads slowly, and the scheduler does not need it
        from engine_lmcache.storage_manager import ManagerSettings, open_manager
        from engine_lmcache.store import LMCacheStore

        own = self._own
        manager = open_manager(
            ManagerSettings(self._l1_bytes, own.l2_adapters, own.request_timeout_s)
        )
        return LMCacheStore(manager, parts, own.request_timeout_s, has_l2=self.supports_lookup)

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return the bytes of L1, which are allocated at start."""
        return self._l1_bytes


def _check_adapter(flag: str, given: dict[str, Any]) -> None:
    if not isinstance(given.get("type"), str):
        raise ConfigError(
            f'{flag} needs an adapter type, for example {{"type": "fs", "base_path": "/folder"}}.'
        )
    serde = given.get("serde")
    if serde is not None and (not isinstance(serde, dict) or serde.get("type") not in LOSSLESS):
        raise ConfigError(
            f"{flag}.serde: got {serde!r:.100}; expected a lossless one, {', '.join(LOSSLESS)}. "
            "Remove it."
        )
