"""Body of `/v1/responses`. `reading` converts it to a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from builtin_plugins.routes.common.fields import EngineFields, OtherFields, ShortString
from builtin_plugins.routes.responses.mending import mend_input


class Part(msgspec.Struct, kw_only=True):
    """Part of a content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: ShortString | None = None


class Item(msgspec.Struct, kw_only=True):
    """One item of the input; the relevant fields depend on its type."""

    type: str | None = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: str | None = None
    call_id: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    phase: str | None = None
    """Whether an assistant's message is commentary or the answer; returned as it was sent."""
    server_label: str | None = None
    error: Any = None
    tools: Any = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool; the relevant fields depend on its type."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: Any = None
    tools: list[dict[str, Any]] | None = None
    server_label: ShortString | None = None
    server_url: str | None = None
    connector_id: str | None = None
    headers: dict[str, Any] | None = None
    authorization: str | None = None
    allowed_tools: Any = None
    require_approval: Any = None


class Allowed(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tool that may be called."""

    type: ShortString
    name: ShortString | None = None


class ToolChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Choice of the tools to call."""

    type: ShortString
    name: ShortString | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[Allowed] | None = None


class Reasoning(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Reasoning effort and summary."""

    effort: ShortString | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: ShortString | None = None


class TextFormat(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Format of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: ShortString | None = None
    schema: dict[str, Any] | None = None
    description: Annotated[str, msgspec.Meta(max_length=16_384)] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Format and length of the answer."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    """Contents of a stream in addition to its events."""

    include_obfuscation: bool = False


Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]


class InputFields(EngineFields, kw_only=True):
    """Fields of the prompt; body of `/v1/responses/input_tokens`."""

    input: str | list[Item] = []
    model: str | None = None
    instructions: str | None = None
    previous_response_id: ShortString | None = None
    tools: list[Tool] = []
    tool_choice: Literal["none", "auto", "required"] | ToolChoice = "auto"
    parallel_tool_calls: bool = True
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    chat_template_kwargs: dict[str, Any] = {}


class ResponsesFields(InputFields, kw_only=True):
    """Body of `/v1/responses`."""

    stream: bool = False
    stream_options: StreamOptions | None = None
    background: bool = False
    store: bool = True
    include: list[ShortString] = []
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    max_tool_calls: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    """Limit for calls at tool servers (`--tool-server`)."""
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    metadata: Metadata = {}
    prompt_cache_key: ShortString | None = None
    safety_identifier: ShortString | None = None
    service_tier: ShortString | None = None
    user: ShortString | None = None


OTHERS: Final = OtherFields(
    mend=mend_input,
    without_effect=(
        "access_programs",
        "client_metadata",
        "context_management",
        "image",
        "personality",
        "prompt_cache_options",
        "prompt_cache_retention",
    ),
    unserved={
        "conversation": "is not served; go on from an answer with `previous_response_id`",
        "moderation": "is not served",
        "prompt": "is not served: the server stores no prompts; send the text",
    },
)

INCLUDABLE: Final = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""Values of `include`; those of OpenAI's own tools have no effect."""
