"""Contracts of clients, servers, routes, tokenizers and metric sinks; prompts
and logs.
"""

from core.contracts.clients import (
    Client,
    EngineStatus,
    Listener,
    Parent,
    PreservedState,
    Running,
    State,
)
from core.contracts.output_parsers import (
    CallText,
    ParseRequest,
    ReasoningFormat,
    ToolFormat,
    random_call_id,
)
from core.contracts.serving import RouteGroup, ServedEngine, Server, ServerActivity
from core.contracts.text import ChatRenderer, Tokenizer
from core.logs import PAUSE_S, RateLimitedLogger, setup_logging
from core.types.prompts import Prompt

__all__ = [
    "PAUSE_S",
    "CallText",
    "ChatRenderer",
    "Client",
    "EngineStatus",
    "Listener",
    "Parent",
    "ParseRequest",
    "PreservedState",
    "Prompt",
    "RateLimitedLogger",
    "ReasoningFormat",
    "RouteGroup",
    "Running",
    "ServedEngine",
    "Server",
    "ServerActivity",
    "State",
    "Tokenizer",
    "ToolFormat",
    "random_call_id",
    "setup_logging",
]
