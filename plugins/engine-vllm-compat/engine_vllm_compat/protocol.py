"""Data classes of vLLM's contracts: inputs and results of parsers."""

from __future__ import annotations

import secrets
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Message(BaseModel):
    """Base class that keeps unknown fields, as in vLLM."""

    model_config = ConfigDict(extra="allow")


class FunctionCall(Message):
    """A function call: name and JSON arguments."""

    name: str
    arguments: str
    id: str | None = None


class ToolCall(Message):
    """A tool call with its id."""

    id: str = Field(default_factory=lambda: make_tool_call_id())
    type: Literal["function"] = "function"
    function: FunctionCall


class ExtractedToolCallInformation(BaseModel):
    """Result of a tool parser."""

    tools_called: bool
    tool_calls: list[ToolCall]
    content: str | None = None


class DeltaFunctionCall(Message):
    """Streamed part of a function call."""

    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(Message):
    """Streamed part of a tool call, with its index."""

    id: str | None = None
    type: Literal["function"] | None = None
    index: int
    function: DeltaFunctionCall | None = None


class DeltaMessage(Message):
    """Streamed part of a message."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[DeltaToolCall] = Field(default_factory=list)


class FunctionDefinition(Message):
    """A callable function."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatCompletionToolsParam(Message):
    """A tool of a request."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class ChatCompletionRequest(Message):
    """The fields of a request that parsers may read."""

    messages: list[Any] = Field(default_factory=list)
    model: str | None = None
    tools: list[ChatCompletionToolsParam] | None = None
    tool_choice: Any = "auto"
    chat_template_kwargs: dict[str, Any] | None = None
    skip_special_tokens: bool = True
    include_reasoning: bool = True
    stream: bool | None = False


class ResponsesRequest(ChatCompletionRequest):
    """A request to `/v1/responses`; parsers always get chat requests."""


def make_tool_call_id(
    id_type: str = "random", func_name: str | None = None, idx: int | None = None
) -> str:
    """Return a new tool call id."""
    return (
        f"functions.{func_name}:{idx}" if id_type == "kimi_k2" else f"chatcmpl-tool-{random_uuid()}"
    )


def random_uuid() -> str:
    """Return 32 hexadecimal digits."""
    return secrets.token_hex(16)
