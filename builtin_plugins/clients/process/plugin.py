"""The engine as a process of its own, supervised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.api import ConfigError, Entry, hookimpl

if TYPE_CHECKING:
    from core.api import Client, EngineConfig, Listener, Registry


@hookimpl
def engine_clients() -> list[Entry]:
    """Return the client; it is better than a thread, because requests survive the engine."""
    summary = "the engine in a process of its own, restarted when it dies"
    return [
        Entry("process", "builtin_plugins.clients.process.plugin:supervised", summary, priority=10)
    ]


def supervised(config: EngineConfig, registry: Registry, listener: Listener) -> Client:
    """Start the process.

    Raises `ConfigError` where the sockets are missing that it is spoken to through.
    """
    try:
        from builtin_plugins.clients.process.supervised import (
            Supervised,
        )  # lazy: sockets are not everywhere
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"an engine in a process of its own needs {error.name}, which is not installed: `pip "
            "install pyzmq`, or "
            "keep the engine in this process with --disable-frontend-multiprocessing."
        ) from error
    return Supervised(config, registry, listener)
