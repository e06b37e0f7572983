"""The kit for child processes of executors, clients and features; as stable as `core.api`."""

import importlib
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.executors.pipeline.partition import layer_partition
from builtin_plugins.executors.process.messages import (
    HEARTBEAT_S,
    Connected,
    Failed,
    Heartbeat,
    RemoteError,
    Start,
)

if TYPE_CHECKING:
    from builtin_plugins.executors.process.child import ParentChannel
    from builtin_plugins.executors.process.remote import Exit, RemoteChild, RemoteProcess
    from builtin_plugins.executors.process.remote_child import run_remote
    from builtin_plugins.executors.process.spawn import TICK_S, Child, thread_environment
    from builtin_plugins.executors.process.tcp_channel import (
        LOST_EVENTS,
        Credentials,
        TcpListener,
        client_socket,
        own_address,
    )

__all__ = [
    "HEARTBEAT_S",
    "LOST_EVENTS",
    "TICK_S",
    "Child",
    "Connected",
    "Credentials",
    "Exit",
    "Failed",
    "Heartbeat",
    "ParentChannel",
    "RemoteChild",
    "RemoteError",
    "RemoteProcess",
    "Start",
    "TcpListener",
    "client_socket",
    "layer_partition",
    "own_address",
    "run_remote",
    "thread_environment",
]
_MODULES: Final = {
    "ParentChannel": "child",
    "TICK_S": "spawn",
    "Child": "spawn",
    "thread_environment": "spawn",
    "Exit": "remote",
    "RemoteChild": "remote",
    "RemoteProcess": "remote",
    "run_remote": "remote_child",
    "LOST_EVENTS": "tcp_channel",
    "Credentials": "tcp_channel",
    "TcpListener": "tcp_channel",
    "client_socket": "tcp_channel",
    "own_address": "tcp_channel",
}
"""Modules that need ZeroMQ, by name."""


def __getattr__(name: str) -> Any:
    """Import what needs ZeroMQ when it is first used: features run without it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"builtin_plugins.executors.process.{_MODULES[name]}")
    return getattr(module, name)
