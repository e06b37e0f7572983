"""Connector `object_store`: its settings, and opening the bucket."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

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
from engine_object_store.store import ObjectBlockStore

LOCAL: Final = ("file:", "memory:")
"""URL schemes without a network."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own settings."""

    url: str
    """Bucket, and a folder in it."""
    options: dict[str, str] = field(default_factory=dict)
    """obstore's options of the store, such as `region` and `endpoint`. Others come from the
    environment.
    """
    max_bytes: int = 64 << 30
    """Bytes of all ranks together."""
    eviction_policy: PolicyName = "lru"
    request_timeout_s: float = 10.0
    """Timeout of a request, in seconds. It is retried once."""
    survey_s: float = 60.0
    """Seconds between two listings of the bucket for blocks of other engines."""


class ObjectStore:
    """Connector `object_store`."""

    medium: Final = "OBJECT_STORE"

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        self._own = read_extra(Settings, settings)
        for name in ("max_bytes", "request_timeout_s", "survey_s"):
            value = getattr(self._own, name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"{FLAG}.{EXTRA}.{name}: got {value}; expected more than 0.")

    @staticmethod
    def example_settings(folder: str) -> Mapping[str, Any]:
        """Return settings for the given folder."""
        return {"url": Path(folder).as_uri(), "max_bytes": 1 << 16}

    def directory(self, layout: KVLayout, num_ranks: int) -> BoundedDirectory:
        """Return a directory with this rank's share of `max_bytes`."""
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        return BoundedDirectory(
            self._own.max_bytes // num_ranks, group_bytes, self._own.eviction_policy
        )

    def store(self, parts: StoreParts) -> ObjectBlockStore:
        """Return this rank's store. Raises `ConfigError` if the bucket is not writable."""
        try:
            bucket = self._bucket()
            probe = f"{parts.fingerprint}/{secrets.token_hex(8)}"
            obstore.put(bucket, probe, b"")
            obstore.delete(bucket, probe)
        except (BaseError, OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"{FLAG}.{EXTRA}.url {self._own.url!r} cannot be written to: {reason}."
            ) from error
        return ObjectBlockStore(bucket, parts.fingerprint, parts.block_bytes, self._own.survey_s)

    def _bucket(self) -> Any:
        own = self._own
        if own.url.startswith(LOCAL):
            return from_url(own.url, **({"mkdir": True} if own.url.startswith("file:") else {}))
        client: dict[str, Any] = {"timeout": timedelta(seconds=own.request_timeout_s)}
        if any(value.startswith("http://") for value in own.options.values()):
            client["allow_http"] = True  # an http endpoint was configured explicitly
        retries: Any = {
            "max_retries": 1,
            "retry_timeout": timedelta(seconds=2 * own.request_timeout_s),
        }
        return from_url(own.url, config=own.options, client_options=client, retry_config=retries)

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return 0: blocks are in memory only while they are transferred."""
        return 0
