"""What clients share with routers, servers, commands and features; as stable as `core.api`."""

import importlib
from typing import TYPE_CHECKING, Any

from builtin_plugins.clients.balancing import Balancer
from builtin_plugins.clients.broker.connection import broker_connection
from builtin_plugins.clients.moved import previous_engines
from builtin_plugins.clients.ranks import RANK, local_ranks, ranks_here
from builtin_plugins.clients.rare_collections import rare_collections
from builtin_plugins.clients.reading_calls import reading_calls

if TYPE_CHECKING:
    from builtin_plugins.clients.broker import messages
    from builtin_plugins.clients.broker.broker import ABORT, OPEN_IDS, EngineBroker
    from builtin_plugins.clients.broker.client import BrokerClient
    from builtin_plugins.clients.broker.open_requests import Session
    from builtin_plugins.clients.broker.sinks import ForwardingSink, forward_shared

_LAZY = {
    "ABORT": "broker.broker",
    "OPEN_IDS": "broker.broker",
    "BrokerClient": "broker.client",
    "EngineBroker": "broker.broker",
    "ForwardingSink": "broker.sinks",
    "Session": "broker.open_requests",
    "forward_shared": "broker.sinks",
    "messages": "broker",
}

__all__ = [
    "ABORT",
    "OPEN_IDS",
    "RANK",
    "Balancer",
    "BrokerClient",
    "EngineBroker",
    "ForwardingSink",
    "Session",
    "broker_connection",
    "forward_shared",
    "local_ranks",
    "messages",
    "previous_engines",
    "ranks_here",
    "rare_collections",
    "reading_calls",
]


def __getattr__(name: str) -> Any:
    """Import what needs ZeroMQ when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "messages":
        return importlib.import_module("builtin_plugins.clients.broker.messages")
    return getattr(importlib.import_module(f"builtin_plugins.clients.{_LAZY[name]}"), name)
