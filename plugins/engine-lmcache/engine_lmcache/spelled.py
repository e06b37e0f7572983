"""What users of vLLM's connector say of LMCache (`lmcache.local_cpu` and the like), in the words of
this one. Knows no LMCache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from builtin_plugins.kv_connectors.api import EXTRA, FLAG
from core.api import ConfigError

PREFIX: Final = "lmcache."
TRUE_ONLY: Final = {"local_cpu": True, "remote_serde": "naive", "save_decode_cache": True}
"""Keys with the one value that says what is so here anyway."""
NONE_OK: Final = frozenset({"local_disk", "remote_url"})
"""Keys of which None asks for nothing."""
KNOWN: Final = (
    "local_cpu",
    "max_local_cpu_size",
    "local_disk",
    "max_local_disk_size",
    "remote_url",
)


def own_words(extra: Mapping[str, Any], num_ranks: int) -> dict[str, Any]:
    """Return a connector's own settings, those that are spelled like vLLM's in its words.

    LMCache's sizes are of each rank, ours of all. Raises `ConfigError` for what has no meaning
    here, naming the key.
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
                raise _refused(key, f"must be {TRUE_ONLY[key]!r} here, not {value!r:.100}")
        elif key == "max_local_cpu_size":
            _say(own, key, "l1_size_gb", _number(key, value) * num_ranks)
        elif key == "max_local_disk_size":
            _say(own, key, "max_bytes", int(_number(key, value) * num_ranks * (1 << 30)))
        elif key == "local_disk":
            adapters.append(_folder(key, value))
        elif key == "remote_url":
            adapters.append(_server(key, value))
        else:
            known = ", ".join(f"'{PREFIX}{each}'" for each in KNOWN)
            raise _refused(key, f"is not served; of LMCache's own keys {known} are. Leave it out")
    if "max_local_disk_size" in given and not adapters:
        raise _refused(
            "max_local_disk_size",
            "bounds nothing without 'lmcache.local_disk'. Leave it out, or name a folder",
        )
    if adapters:
        _say(own, "local_disk' or 'lmcache.remote_url", "l2_adapters", adapters)
    return own


def _say(own: dict[str, Any], key: str, ours: str, value: Any) -> None:
    if ours in own:
        raise _refused(key, f"and {ours!r} say the same; leave one out")
    own[ours] = value


def _number(key: str, value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 < value < float("inf")
    ):
        raise _refused(key, f"must be GiB, more than 0, not {value!r:.100}")
    return float(value)


def _folder(key: str, value: Any) -> dict[str, Any]:
    path = value.removeprefix("file://") if isinstance(value, str) else ""
    if not path:
        raise _refused(key, f"must be a folder, not {value!r:.100}")
    return {"type": "fs", "base_path": path}


def _server(key: str, value: Any) -> dict[str, Any]:
    url = urlsplit(value if isinstance(value, str) else "")
    try:
        port = url.port or 6379
    except ValueError as error:
        raise _refused(key, f"is no URL: {error}") from error
    if url.scheme != "redis" or not url.hostname:  # it may hold a password, so it is not shown
        raise _refused(
            key,
            f"must be redis://host:port, not {url.scheme!r:.100}; describe other places in "
            "'l2_adapters'",
        )
    found = {"type": "resp", "host": url.hostname, "port": port}
    who = {"username": url.username, "password": url.password}
    return found | {name: said for name, said in who.items() if said}


def _refused(key: str, why: str) -> ConfigError:
    return ConfigError(f"{FLAG}.{EXTRA}: '{PREFIX}{key}' {why}.")
