"""The kit for child processes of executors, clients and features; as stable as `core.api`."""

import importlib
from typing import TYPE_CHECKING, Any

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
    from builtin_plugins.executors.process.spawn import TICK_S, Child, thread_environment

__all__ = [
    "HEARTBEAT_S",
    "TICK_S",
    "Child",
    "Connected",
    "Failed",
    "Heartbeat",
    "ParentChannel",
    "RemoteError",
    "Start",
    "thread_environment",
]


def __getattr__(name: str) -> Any:
    """Import what needs ZeroMQ when it is first used: features run without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "child" if name == "ParentChannel" else "spawn"
    return getattr(importlib.import_module(f"builtin_plugins.executors.process.{module}"), name)
