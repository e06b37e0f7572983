"""Contracts of clients, servers, routes, tokenizers and metric sinks; prompts and logs."""

from core.contracts.clients import Client, EngineStatus, Listener, Running, State
from core.contracts.serving import ServedEngine
from core.contracts.text import ChatRenderer, Tokenizer
from core.logs import PAUSE_S, RateLimitedLogger, setup_logging
from core.types.prompts import Prompt, RenderedText

__all__ = [
    "PAUSE_S",
    "ChatRenderer",
    "Client",
    "EngineStatus",
    "Listener",
    "Prompt",
    "RateLimitedLogger",
    "RenderedText",
    "Running",
    "ServedEngine",
    "State",
    "Tokenizer",
    "setup_logging",
]
