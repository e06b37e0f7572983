"""Settings of the tiers: `--kv-transfer-config` and `--kv-offloading-size`, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from builtin_plugins.kv_connectors.api import (
    EXTRA,
    FLAG,
    KVTransferConfig,
    read_extra,
    read_fields,
    require_positive,
    unknown_key,
)
from core.api import ConfigError, EngineConfig

SIZE_FLAG: Final = "--kv-offloading-size"
MULTI: Final = "multi"
LMCACHE: Final = "lmcache"
ALIASES: Final[Mapping[str, str]] = {
    "OffloadingConnector": "offload",
    "ExampleConnector": "shared_storage",
    "SharedStorageConnector": "shared_storage",
    "MultiConnector": MULTI,
    "NixlConnector": "nixl",
    "MooncakeConnector": "mooncake",
    "LMCacheConnectorV1": LMCACHE,
}
"""vLLM's connector names, and the entries that implement them."""
UNSUPPORTED: Final[Mapping[str, str]] = {
    "LMCacheMPConnector": "it needs an LMCache server, which cuts prompts into chunks of its own. "
    "Use lmcache: engines share its l2_adapters.",
}
"""vLLM's connector names that have no implementation, with the alternative."""
INSTALL_HINTS: Final[Mapping[str, str]] = {
    name: "It is a separate distribution: "
    f"`pip install plugins/engine-{name.replace('_', '-')}` in a checkout of the engine."
    for name in ("nixl", "mooncake", "object_store", LMCACHE)
}
"""How to install connectors that are separate distributions."""
IGNORED_KEYS: Final[Mapping[str, tuple[Any, ...]]] = {
    "kv_buffer_device": ("cpu", None),
    "kv_rank": (0, None),
    "kv_parallel_size": (1,),
    "kv_connector_module_path": (None,),
    "enable_permute_local_kv": (False,),
}
"""vLLM's keys without an effect here, with their accepted values."""
LOCAL_CONNECTORS: Final = frozenset({"offload", "disk", "shared_storage"})
"""Connectors that link no engines, and so take no address."""


@dataclass(frozen=True, slots=True)
class MultiSettings:
    """Settings of `multi`, which stands for several connectors."""

    connectors: list[dict[str, Any]]


def tiers_of(config: EngineConfig) -> list[KVTransferConfig]:
    """Return the settings of each tier, in lookup order. Raises `ConfigError` naming the key."""
    options = config.options
    given = dict(options.get("kv_transfer_config") or {})
    size = options.get("kv_offloading_size")
    tiers = []
    if size is not None:
        if not 0 < size < float("inf"):
            raise ConfigError(f"{SIZE_FLAG} {size}: expected GiB of host memory, more than 0.")
        if options.get("kv_offloading_backend") == LMCACHE:
            extra: dict[str, Any] = {"l1_size_gb": size}
            tiers.append(KVTransferConfig(LMCACHE, kv_connector_extra_config=extra))
        else:
            extra = {"cpu_bytes_to_use": int(size * (1 << 30))}
            tiers.append(KVTransferConfig("offload", kv_connector_extra_config=extra))
    if given:
        tiers += _expand(given)
    if tiers and not config.cache.enable_prefix_caching:
        raise ConfigError(
            f"{FLAG if given else SIZE_FLAG} needs prefix caching, because blocks are found by its "
            "keys. Remove --no-enable-prefix-caching."
        )
    return tiers


def _expand(given: Mapping[str, Any]) -> list[KVTransferConfig]:
    """Return one connector's settings, or those that `multi` lists.

    Listed connectors inherit the keys of `multi`.
    """
    outer = _read(given)
    if outer.kv_connector != MULTI:
        return [outer]
    listed = read_extra(MultiSettings, outer).connectors
    if not listed:
        raise ConfigError(
            f"{FLAG}.{EXTRA}.connectors is empty; list the settings of one connector or more."
        )
    inherited = {k: value for k, value in given.items() if k not in ("kv_connector", EXTRA)}
    tiers = [_read({**inherited, **each}) for each in listed]
    if any(each.kv_connector == MULTI for each in tiers):
        raise ConfigError(
            f"{FLAG}.{EXTRA}.connectors: got multi inside multi; list all connectors in one multi."
        )
    return tiers


def _read(given: Mapping[str, Any]) -> KVTransferConfig:
    known = {field.name: field for field in fields(KVTransferConfig)}
    for key, value in given.items():
        if key in IGNORED_KEYS:
            if value not in IGNORED_KEYS[key]:
                raise ConfigError(
                    f"{FLAG}.{key}: got {value!r:.100}; expected {IGNORED_KEYS[key][0]!r}: another "
                    "value has no effect. Remove it."
                )
        elif key not in known:
            raise ConfigError(unknown_key(FLAG, key, dict.fromkeys(sorted(known))))
    values = {key: value for key, value in given.items() if key in known}
    if not values.get("kv_connector"):
        raise ConfigError(
            f'{FLAG} needs the name of a connector, for example {{"kv_connector": "offload"}}.'
        )
    settings = read_fields(KVTransferConfig, values, FLAG)
    name = settings.kv_connector
    if name in UNSUPPORTED:
        raise ConfigError(f"{FLAG}.kv_connector {name}: {UNSUPPORTED[name]}")
    settings = replace(settings, kv_connector=ALIASES.get(name, name))
    for key in ("max_bytes_per_step", "max_inflight_bytes", "timeout_s"):
        require_positive(f"{FLAG}.{key}", getattr(settings, key))
    for key in ("kv_ip", "kv_port", "engine_id", "kv_buffer_size"):
        value = getattr(settings, key)
        default = getattr(KVTransferConfig("none"), key)
        if settings.kv_connector in LOCAL_CONNECTORS and value != default:
            raise ConfigError(
                f"{FLAG}.{key} {value!r:.100} is only for connectors between engines. Remove it, "
                "or use the connector tcp."
            )
    return settings
