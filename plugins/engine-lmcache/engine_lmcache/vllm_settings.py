"""Converts the settings of vLLM's LMCache connector (`lmcache.*`) to this connector's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from builtin_plugins.kv_connectors.api import EXTRA, FLAG
from core.api import ConfigError

PREFIX: Final = "lmcache."
TRUE_ONLY: Final = {"local_cpu": True, "remote_serde": "naive", "save_decode_cache": True}
"""Keys with their only supported value."""
NONE_OK: Final = frozenset({"local_disk", "remote_url"})
"""Keys that may be None."""
KNOWN: Final = (
    "local_cpu",
    "max_local_cpu_size",
    "local_disk",
    "max_local_disk_size",
    "remote_url",
)


def convert_settings(extra: Mapping[str, Any], num_ranks: int) -> dict[str, Any]:
    """Return the connector's own settings, with `lmcache.*` keys converted.

    vLLM's sizes are per rank, ours are of all ranks. Raises `ConfigError` naming an unsupported
    key.
    """
    given = {
        key.removeprefix(PREFIX): value for key, value in extra.items() if key.startswith(PREFIX)
    }
    own = {key: value for key, value in extra.items() if not key.startswith(PREFIX)}
    adapters = []
    for key, value in given.items():
        if key in NONE_OK and value is None:
            continue
        if key in TRUE_ONLY:
            if value != TRUE_ONLY[key]:
                raise _rejected(key, f"got {value!r:.100}; expected {TRUE_ONLY[key]!r}")
        elif key == "max_local_cpu_size":
            _set(own, key, "l1_size_gb", _number(key, value) * num_ranks)
        elif key == "max_local_disk_size":
            _set(own, key, "max_bytes", int(_number(key, value) * num_ranks * (1 << 30)))
        elif key == "local_disk":
            adapters.append(_folder(key, value))
        elif key == "remote_url":
            adapters.append(_server(key, value))
        else:
            known = ", ".join(f"'{PREFIX}{each}'" for each in KNOWN)
            raise _rejected(key, f"it is not supported; supported are {known}. Remove it")
    if "max_local_disk_size" in given and not adapters:
        raise _rejected(
            "max_local_disk_size",
            "it has no effect without 'lmcache.local_disk'. Remove it, or set a folder",
        )
    if adapters:
        _set(own, "local_disk' or 'lmcache.remote_url", "l2_adapters", adapters)
    return own


def _set(own: dict[str, Any], key: str, own_key: str, value: Any) -> None:
    if own_key in own:
        raise _rejected(key, f"{own_key!r} sets the same value. Remove one of them")
    own[own_key] = value


def _number(key: str, value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 < value < float("inf")
    ):
        raise _rejected(key, f"got {value!r:.100}; expected GiB, more than 0")
    return float(value)


def _folder(key: str, value: Any) -> dict[str, Any]:
    path = value.removeprefix("file://") if isinstance(value, str) else ""
    if not path:
        raise _rejected(key, f"got {value!r:.100}; expected a folder")
    return {"type": "fs", "base_path": path}


def _server(key: str, value: Any) -> dict[str, Any]:
    url = urlsplit(value if isinstance(value, str) else "")
    try:
        port = url.port or 6379
    except ValueError as error:
        raise _rejected(key, f"got an invalid URL ({error}); expected redis://host:port") from error
    if url.scheme != "redis" or not url.hostname:  # the URL may hold a password
        raise _rejected(
            key,
            f"got the scheme {url.scheme!r:.100}; expected redis://host:port. Use 'l2_adapters' "
            "for other storage",
        )
    adapter = {"type": "resp", "host": url.hostname, "port": port}
    login = {"username": url.username, "password": url.password}
    return adapter | {name: value for name, value in login.items() if value}


def _rejected(key: str, reason: str) -> ConfigError:
    return ConfigError(f"{FLAG}.{EXTRA}: '{PREFIX}{key}': {reason}.")
