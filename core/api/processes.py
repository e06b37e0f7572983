"""The kit for child processes of executors and clients."""

from core.process.child import ParentChannel
from core.process.messages import HEARTBEAT_S, Connected, Failed, Heartbeat, Start
from core.process.spawn import TICK_S, Child, thread_environment

__all__ = [
    "HEARTBEAT_S",
    "TICK_S",
    "Child",
    "Connected",
    "Failed",
    "Heartbeat",
    "ParentChannel",
    "Start",
    "thread_environment",
]
