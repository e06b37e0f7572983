"""Bodies of Anthropic's requests. `reading` converts them to conversations."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from builtin_plugins.routes.anthropic.mending import mend_messages
from builtin_plugins.routes.common.fields import MessageFields, OtherFields

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text."""

    text: str


class ImageBlock(msgspec.Struct, tag_field="type", tag="image"):
    """An image, as base64 or by its URL."""

    source: dict[str, Any] = {}


class DocumentBlock(msgspec.Struct, tag_field="type", tag="document"):
    """A document; only plain text is supported."""

    source: dict[str, Any]
    title: str | None = None


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool call by the model."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    """The result of a tool call."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = False


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning of the model."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """Reasoning encrypted by Anthropic's servers; ignored."""

    data: str = ""


Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
)


class Message(msgspec.Struct):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the client runs."""

    name: str
    type: str | None = "custom"
    description: str | None = ""
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """Choice of the tools to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = False


class Thinking(msgspec.Struct, kw_only=True):
    """Whether and how long the model thinks, and whether the answer includes its reasoning."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    """JSON schema of the answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    """Format of the answer, and the reasoning effort."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountFields(MessageFields, kw_only=True):
    """Fields of the prompt; body of `/v1/messages/count_tokens`."""

    messages: list[Message]
    system: str | list[TextBlock] = ""
    tools: list[Tool] = []
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """Former name of `output_config.format`."""
    chat_template_kwargs: dict[str, Any] = {}


class MessagesFields(CountFields, kw_only=True):
    """Body of `/v1/messages`."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    stream: bool = False
    stop_sequences: list[str] = []


OTHERS: Final = OtherFields(
    mend=mend_messages,
    without_effect=(
        "anthropic_beta",
        "anthropic_version",
        "betas",
        "billing_policy",
        "cache_control",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    ),
    unserved={
        "compaction": "is not served: send the conversation as it is to go on",
        "container": "is not served: tools are run by the client",
        "mcp_servers": "is not served: tools are run by the client",
        "thread": "is not served: send the whole conversation",
    },
)
