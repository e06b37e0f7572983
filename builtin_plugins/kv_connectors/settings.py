"""`--kv-transfer-config` and `--kv-offloading-size`: typed, checked once.

Knows connectors by their names only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from core.api import ConfigError, EngineConfig, KVTransferConfig, did_you_mean

T = TypeVar("T")
FLAG: Final = "--kv-transfer-config"
EXTRA: Final = "kv_connector_extra_config"
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
"""vLLM's names of connectors that are here."""
ABSENT: Final[Mapping[str, str]] = {
    "LMCacheMPConnector": "it speaks with a server of LMCache's, which cuts prompts into chunks of "
    "its own. Name lmcache: engines "
    "share what its l2_adapters say.",
}
"""vLLM's names of connectors that cannot be here, and what to take."""
CURES: Final[Mapping[str, str]] = {
    name: f"It is installed apart: `pip install plugins/engine-{name.replace('_', '-')}` in a "
    "checkout of the engine."
    for name in ("nixl", "mooncake", "object_store", LMCACHE)
}
"""What to do where a connector is not loaded."""
IDLE: Final[Mapping[str, tuple[Any, ...]]] = {
    "kv_buffer_device": ("cuda", "cpu"),
    "kv_rank": (0, None),
    "kv_parallel_size": (1,),
    "kv_connector_module_path": (None,),
    "enable_permute_local_kv": (False,),
}
"""Keys of vLLM that nobody reads, with the values that ask for nothing."""
ALONE: Final = frozenset({"offload", "disk", "shared_storage"})
"""Connectors that know no other engine: an address means nothing to them."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Settings of `multi`, which is no connector but several."""

    connectors: list[dict[str, Any]]


def tiers_of(config: EngineConfig) -> list[KVTransferConfig]:
    """Return the settings of every tier behind the cache, the one asked first first.

    Raises `ConfigError` naming the key.
    """
    options = config.options
    given = dict(options.get("kv_transfer_config") or {})
    size = options.get("kv_offloading_size")
    tiers = []
    if size is not None:
        if not 0 < size < float("inf"):
            raise ConfigError(
                f"{SIZE_FLAG} {size} is no size; state the GiB of host memory, more than 0."
            )
        if options.get("kv_offloading_backend") == LMCACHE:
            tiers.append(KVTransferConfig(LMCACHE, kv_connector_extra_config={"l1_size_gb": size}))
        else:
            extra = {"cpu_bytes_to_use": int(size * (1 << 30))}
            tiers.append(KVTransferConfig("offload", kv_connector_extra_config=extra))
    if given:
        tiers += _listed(given)
    if tiers and not config.cache.enable_prefix_caching:
        raise ConfigError(
            f"{FLAG if given else SIZE_FLAG} needs prefix caching, by whose keys blocks are found "
            "again; "
            "leave out --no-enable-prefix-caching."
        )
    return tiers


def _listed(given: Mapping[str, Any]) -> list[KVTransferConfig]:
    """Return one connector's settings, or those that `multi` lists: what these do not say, the
    whole says for them.
    """
    whole = _read(given)
    if whole.kv_connector != MULTI:
        return [whole]
    listed = read_extra(Listed, whole).connectors
    if not listed:
        raise ConfigError(
            f"{FLAG}.{EXTRA}.connectors is empty; list the settings of one connector at least."
        )
    said = {key: value for key, value in given.items() if key not in ("kv_connector", EXTRA)}
    tiers = [_read({**said, **each}) for each in listed]
    if any(each.kv_connector == MULTI for each in tiers):
        raise ConfigError(
            f"{FLAG}.{EXTRA}.connectors: a list in a list is a list; name the connectors in one."
        )
    return tiers


def _read(given: Mapping[str, Any]) -> KVTransferConfig:
    known = {field.name for field in fields(KVTransferConfig)}
    for key, value in given.items():
        if key in IDLE:
            if value not in IDLE[key]:
                raise ConfigError(
                    f"{FLAG}.{key} {value!r:.100} is not served: nothing here reads it. Leave it "
                    "out."
                )
        elif key not in known:
            hint = did_you_mean(key, known)
            raise ConfigError(
                f"{FLAG} has no "
                f"{key!r}{hint}{'' if hint else '; known: ' + ', '.join(sorted(known)) + '.'}"
            )
    values = {key: value for key, value in given.items() if key in known}
    if not values.get("kv_connector"):
        raise ConfigError(
            f'{FLAG} needs the name of a connector, such as {{"kv_connector": "offload"}}.'
        )
    settings = read_fields(KVTransferConfig, values, FLAG)
    if settings.kv_connector in ABSENT:
        raise ConfigError(
            f"{FLAG}.kv_connector {settings.kv_connector}: {ABSENT[settings.kv_connector]}"
        )
    settings = replace(
        settings, kv_connector=ALIASES.get(settings.kv_connector, settings.kv_connector)
    )
    for key in ("step_bytes", "most_bytes_under_way", "timeout_s"):
        if not 0 < getattr(settings, key) < float("inf"):
            raise ConfigError(f"{FLAG}.{key} must be more than 0, not {getattr(settings, key)!r}.")
    for key in ("kv_ip", "kv_port"):
        value = getattr(settings, key)
        if settings.kv_connector in ALONE and value != getattr(KVTransferConfig("none"), key):
            raise ConfigError(
                f"{FLAG}.{key} {value!r:.100} is for connectors between engines. Leave it out, or "
                "name tcp."
            )
    return settings


def read_extra(kind: type[T], settings: KVTransferConfig) -> T:
    """Return a connector's own settings as its dataclass. Raises `ConfigError` naming the key."""
    return read_fields(kind, settings.kv_connector_extra_config, f"{FLAG}.{EXTRA}")


def read_fields(kind: type[T], given: Mapping[str, Any], flag: str) -> T:
    """Return a dataclass of values that users have given, each of its field's type.

    Raises `ConfigError` naming the key.
    """
    types = get_type_hints(kind)
    values = {}
    for key, value in given.items():
        if key not in types:
            hint = did_you_mean(key, types)
            raise ConfigError(
                f"{flag} has no {key!r}{hint}{'' if hint else '; known: ' + ', '.join(types) + '.'}"
            )
        values[key] = _checked(value, types[key], f"{flag}.{key}")
    for field in fields(kind):  # type: ignore[arg-type]  # it is a dataclass
        if field.default is field.default_factory is MISSING and field.name not in values:
            raise ConfigError(f"{flag} needs {field.name!r}.")
    return kind(**values)


def _checked(value: Any, wanted: Any, flag: str) -> Any:
    choices = get_args(wanted)
    if choices and all(isinstance(choice, str) for choice in choices):
        if value not in choices:
            raise ConfigError(f"{flag} must be one of {', '.join(choices)}, not {value!r:.100}.")
        return value
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        text = str(error)
        raise ConfigError(f"{flag}: {text[:1].lower()}{text[1:]}.") from error
