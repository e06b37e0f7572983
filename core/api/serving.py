"""Contracts of clients, servers, routes, tokenizers and metric sinks; prompts
and logs.
"""

from core.contracts.clients import Client, EngineStatus, Listener, Running, State
from core.contracts.serving import RouteGroup, ServedEngine, Server, ServerActivity
from core.contracts.text import ChatRenderer, Tokenizer
from core.logs import PAUSE_S, RateLimitedLogger, setup_logging
from core.types.prompts import Prompt

__all__ = [
    "PAUSE_S",
    "ChatRenderer",
    "Client",
    "EngineStatus",
    "Listener",
    "Prompt",
    "RateLimitedLogger",
    "RouteGroup",
    "Running",
    "ServedEngine",
    "Server",
    "ServerActivity",
    "State",
    "Tokenizer",
    "setup_logging",
]
