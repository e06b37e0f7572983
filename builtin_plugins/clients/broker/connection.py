"""How clients of an API server find the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry
    from core.api.serving import Client, Listener

    Connect = Callable[[EngineConfig, Registry, Listener], Client]


def broker_connection(registry: Registry, connect: Connect | None = None) -> Connect | None:
    """Return what connects an API server to its broker; None in other processes.

    The first call decides: an API server passes `connect` before it makes its client.
    """
    found: Connect | None = registry.shared("broker connection", lambda: connect)
    return found
