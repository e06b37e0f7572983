"""Whether a server has the playground: by default only where no other machine reaches it."""

from __future__ import annotations

import ipaddress
from typing import Final

from core.api import EngineConfig, Registry

NAME: Final = "playground"


def is_offered(config: EngineConfig, registry: Registry) -> bool:
    """Return whether the page is served: its plugin is named, or the server is local.

    A local server listens on a loopback address. Several API servers have no page, because its
    counters are those of one process.
    """
    if any(ref.name == NAME and ref.named for ref in registry.plan.plugins):
        return True
    options = config.options
    if options.get("uds") or (options.get("api_server_count") or 1) > 1:
        return False
    return _is_loopback(options.get("host") or "127.0.0.1")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
