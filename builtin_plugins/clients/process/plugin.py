"""The engine in its own, supervised process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builtin_plugins.clients.broker.connection import broker_connection
from builtin_plugins.clients.ranks import local_ranks
from core.api import ConfigError, Entry, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry
    from core.api.serving import Client, Listener


EXAMPLE_REQUESTS = [({"resumable": True}, "there", "there")]
"""Example requests of the conformance suite."""


@hookimpl
def engine_clients() -> list[Entry]:
    """Return the client; preferred over a thread, because requests survive an engine crash."""
    summary = "the engine in a process of its own, restarted when it dies"
    return [
        Entry("process", "builtin_plugins.clients.process.plugin:supervised", summary, priority=10)
    ]


@hookimpl
def engine_admission_extensions() -> list[Any]:
    """Return the half that marks requests which outlive the API process."""
    from builtin_plugins.clients.process.resumable import Admission  # lazy: quick start

    return [Admission()]


@hookimpl
def engine_runner_extensions() -> list[Any]:
    """Return the half that identifies the weights, for answers that a restart would continue."""
    from builtin_plugins.clients.process.weights import WeightsIdentity  # lazy: quick start

    return [WeightsIdentity()]


def supervised(config: EngineConfig, registry: Registry, listener: Listener) -> Client:
    """Start the process.

    Raises `ConfigError` if pyzmq is missing, and for ranks that do not exist.
    """
    local_ranks(config)
    if (connect := broker_connection(registry)) is not None:
        return connect(config, registry, listener)
    try:
        from builtin_plugins.clients.process.supervised import (
            Supervised,
        )  # lazy: pyzmq is optional
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"an engine process needs {error.name}, which is not installed: `pip install pyzmq`, "
            "or run the engine in this process with --disable-frontend-multiprocessing."
        ) from error
    return Supervised(config, registry, listener)
