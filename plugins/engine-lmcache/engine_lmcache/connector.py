"""The connector's settings, and what it takes. Loads LMCache only where a rank opens its part."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.kv_connectors.api import EXTRA, FLAG, BoundedDirectory, Name, read_extra
from core.api import ConfigError, EngineConfig, KVLayout, KVTransferConfig, StoreParts
from engine_lmcache.objects import ALIGN_BYTES, padded
from engine_lmcache.spelled import own_words

if TYPE_CHECKING:
    from engine_lmcache.store import Chunks

LOSSLESS: Final = ("aesgcm",)
"""LMCache's ways to write objects (`serde`) that give the same bytes back."""
QUIET: Final = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR"}
"""LMCache reads these where it is loaded, and nowhere else: it tells nobody that it is used, and
logs no line for each block.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own; names as in LMCache where it has any."""

    l1_size_gb: float = 5.0
    """GiB of host memory, of all ranks together."""
    l2_adapters: list[dict[str, Any]] = field(default_factory=list)
    """What lies behind it, as LMCache's `--l2-adapter` describes it."""
    max_bytes: int = 64 << 30
    """Of what lies behind it, of all ranks together."""
    eviction_policy: Name = "lru"
    request_timeout_s: float = 10.0
    """What takes longer is given up."""


class LMCache:
    """Connector `lmcache`."""

    medium: Final = "LMCACHE"

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        parallel = config.parallel
        self._stages = parallel.pipeline_parallel_size
        self._num_ranks = parallel.tensor_parallel_size * self._stages
        own = own_words(settings.kv_connector_extra_config, self._num_ranks)
        self._own = read_extra(Settings, replace(settings, kv_connector_extra_config=own))
        for name in ("l1_size_gb", "max_bytes", "request_timeout_s"):
            if not 0 < getattr(self._own, name) < float("inf"):
                raise ConfigError(
                    f"{FLAG}.{EXTRA}.{name} must be more than 0, not {getattr(self._own, name)}."
                )
        if self._l1_bytes < ALIGN_BYTES:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.l1_size_gb {self._own.l1_size_gb} holds no block; state GiB."
            )
        for place, each in enumerate(self._own.l2_adapters):
            _check_adapter(f"{FLAG}.{EXTRA}.l2_adapters[{place}]", each)
        self.looks = bool(self._own.l2_adapters)
        """Others write there, and it cannot be listed: it is asked for what each request begins
        with.
        """

    @property
    def _l1_bytes(self) -> int:
        """What L1 has on each rank."""
        return int(self._own.l1_size_gb * (1 << 30)) // self._num_ranks

    @staticmethod
    def trial(folder: str) -> Mapping[str, Any]:
        """A little memory, and the folder behind it."""
        return {
            "l1_size_gb": 2**-9,
            "l2_adapters": [{"type": "fs", "base_path": folder}],
            "max_bytes": 1 << 16,
        }

    def directory(self, layout: KVLayout, num_ranks: int) -> BoundedDirectory:
        """Return a directory of this rank's share: of what lies behind L1, or where nothing does,
        of L1.
        """
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        most_bytes = self._own.max_bytes // num_ranks
        if not self._own.l2_adapters:
            # L1 rounds objects up, on each stage the layers of a block that are there.
            filled = min(
                num_bytes / self._stages / padded(num_bytes // self._stages)
                for num_bytes in group_bytes
            )
            most_bytes = int(self._l1_bytes * self._stages * filled)
        return BoundedDirectory(most_bytes, group_bytes, self._own.eviction_policy)

    def store(self, parts: StoreParts) -> Chunks:
        """Return this rank's part.

        Raises `ConfigError` where LMCache cannot be loaded, or what lies behind cannot be used.
        """
        least = 2 * max(
            padded(num_bytes) for num_bytes in parts.block_bytes
        )  # one leaves while another comes
        if self._l1_bytes < least:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.l1_size_gb {self._own.l1_size_gb} is {self._l1_bytes} bytes on "
                "each rank, and two blocks take "
                f"{least} there; state more."
            )
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        # lazy: LMCache takes long to load, and the scheduler needs none of it
        from engine_lmcache.opening import Opening, opened
        from engine_lmcache.store import Chunks

        own = self._own
        manager = opened(Opening(self._l1_bytes, own.l2_adapters, own.request_timeout_s))
        return Chunks(manager, parts, own.request_timeout_s, has_l2=self.looks)

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return L1's, of which all is taken at the start."""
        return self._l1_bytes


def _check_adapter(flag: str, given: dict[str, Any]) -> None:
    if not isinstance(given.get("type"), str):
        raise ConfigError(
            f"{flag} needs the type of an adapter, such as "
            f'{{"type": "fs", "base_path": "/folder"}}.'
        )
    serde = given.get("serde")
    if serde is not None and (not isinstance(serde, dict) or serde.get("type") not in LOSSLESS):
        raise ConfigError(
            f"{flag}.serde {serde!r:.100}: what is read must be what was written, byte by byte; "
            "there is "
            f"{', '.join(LOSSLESS)}. Leave it out."
        )
