"""Bodies of Cohere's requests. `reading` converts them to conversations."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from builtin_plugins.routes.common.fields import MessageFields, OtherFields

Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """Text."""

    text: str


class ThinkingPart(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning of the model."""

    thinking: str


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    """An image by its URL."""

    image_url: dict[str, Any] | str | None = None


class DocumentPart(msgspec.Struct, tag_field="type", tag="document"):
    """A document that a tool found."""

    document: dict[str, Any]


Part = TextPart | ThinkingPart | ImagePart | DocumentPart


class CalledFunction(msgspec.Struct, kw_only=True):
    """The called function, with its arguments as JSON."""

    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call by the model."""

    function: CalledFunction
    id: str = ""
    type: Literal["function"] = "function"


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_plan: str | None = None
    """Text of the assistant before its calls."""
    tool_call_id: str | None = None
    citations: list[Any] | None = None


class Function(msgspec.Struct, kw_only=True):
    """A function that the client runs."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the client runs."""

    function: Function
    type: Literal["function"] = "function"


class Thinking(msgspec.Struct, kw_only=True):
    """Whether the model thinks, and for how long."""

    type: Literal["enabled", "disabled"]
    token_budget: Count | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """Format of the answer."""

    type: Literal["text", "json_object"]
    json_schema: dict[str, Any] | None = None


class ChatFields(MessageFields, kw_only=True):
    """Body of `/v2/chat`."""

    messages: list[Message]
    stream: bool = False
    tools: list[Tool] = []
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: list[str | dict[str, Any]] = []
    response_format: ResponseFormat | None = None
    max_tokens: Count | None = None
    stop_sequences: list[str] = []
    k: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    logprobs: bool = False
    thinking: Thinking | None = None
    chat_template_kwargs: dict[str, Any] = {}


OTHERS: Final = OtherFields(
    without_effect=("citation_options", "safety_mode", "strict_tools"), unserved={}
)
