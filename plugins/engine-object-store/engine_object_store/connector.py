"""The connector's settings, and how its bucket is opened."""

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

from builtin_plugins.kv_connectors.api import EXTRA, FLAG, BoundedDirectory, Name, read_extra
from core.api import ConfigError, EngineConfig, KVLayout, KVTransferConfig, StoreParts
from engine_object_store.store import Objects

LOCAL: Final = ("file:", "memory:")
"""Beginnings of URLs behind which there is no network."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own."""

    url: str
    """Of the bucket, and of a folder in it."""
    options: dict[str, str] = field(default_factory=dict)
    """obstore's for this kind of store, such as `region` and `endpoint`; what it finds in the
    environment is left out.
    """
    max_bytes: int = 64 << 30
    """Of all ranks together."""
    eviction_policy: Name = "lru"
    request_timeout_s: float = 10.0
    """An answer that takes longer is given up, and asked for once more."""
    survey_s: float = 60.0
    """After so long it is looked for what others have put there."""


class ObjectStore:
    """Connector `object_store`."""

    medium: Final = "OBJECT_STORE"

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        self._own = read_extra(Settings, settings)
        for name in ("max_bytes", "request_timeout_s", "survey_s"):
            if not 0 < getattr(self._own, name) < float("inf"):
                raise ConfigError(
                    f"{FLAG}.{EXTRA}.{name} must be more than 0, not {getattr(self._own, name)}."
                )

    @staticmethod
    def trial(folder: str) -> Mapping[str, Any]:
        """The folder."""
        return {"url": Path(folder).as_uri(), "max_bytes": 1 << 16}

    def directory(self, layout: KVLayout, num_ranks: int) -> BoundedDirectory:
        """Return a directory of this rank's share, however many stages the layers are split into."""
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        return BoundedDirectory(
            self._own.max_bytes // num_ranks, group_bytes, self._own.eviction_policy
        )

    def store(self, parts: StoreParts) -> Objects:
        """Return this rank's part of the bucket.

        Raises `ConfigError` where nothing can be put there.
        """
        try:
            bucket = self._bucket()
            probe = f"{parts.fingerprint}/{secrets.token_hex(8)}"
            obstore.put(bucket, probe, b"")
            obstore.delete(bucket, probe)
        except (BaseError, OSError, ValueError) as error:
            said = str(error).partition("\n")[0]
            raise ConfigError(
                f"{FLAG}.{EXTRA}.url {self._own.url!r} cannot be written to: {said}."
            ) from error
        return Objects(bucket, parts.fingerprint, parts.block_bytes, self._own.survey_s)

    def _bucket(self) -> Any:
        own = self._own
        if own.url.startswith(LOCAL):
            return from_url(own.url, **({"mkdir": True} if own.url.startswith("file:") else {}))
        client: dict[str, Any] = {"timeout": timedelta(seconds=own.request_timeout_s)}
        if any(value.startswith("http://") for value in own.options.values()):
            client["allow_http"] = True  # whoever names such an endpoint wants it
        retries: Any = {
            "max_retries": 1,
            "retry_timeout": timedelta(seconds=2 * own.request_timeout_s),
        }
        return from_url(own.url, config=own.options, client_options=client, retry_config=retries)

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return nothing: blocks are in memory only while they are on their way."""
        return 0
