"""The kit for child processes of executors, clients and features; as stable as `core.api`."""

from builtin_plugins.executors.process.child import ParentChannel
from builtin_plugins.executors.process.messages import (
    HEARTBEAT_S,
    Connected,
    Failed,
    Heartbeat,
    RemoteError,
    Start,
)
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
