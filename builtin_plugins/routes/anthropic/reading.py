"""Converts Anthropic's requests to conversations: content blocks to messages of chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from builtin_plugins.routes.anthropic.fields import (
    Block,
    CountFields,
    DocumentBlock,
    ImageBlock,
    Message,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
)
from builtin_plugins.routes.common.conversation import (
    content_of,
    decode_reasoning,
    merge_consecutive_roles,
)
from builtin_plugins.routes.common.fields import with_client_field
from builtin_plugins.routes.common.media_parts import image_source
from builtin_plugins.routes.media import MediaSource
from core.api import InvalidRequest

_BILLING: Final = "x-anthropic-billing-header:"
"""Start of a system block that Claude Code sends to Anthropic's servers. It is left out of the
prompt: it differs in every request, so the prefix cache would never match."""
IMAGE_RESULT: Final = "[image]"
"""Text of a tool result with images only."""
_NAMES: Final = {
    "prompt": "messages",
    "sampling_params": "model",
    "extra_args": "vllm_xargs",
    "stop": "stop_sequences",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format": "output_config.format",
}
"""The client's field names, by the engine's."""


def messages_of(fields: CountFields) -> list[dict[str, Any]]:
    """Return the messages of a request. Raises `InvalidRequest` for a misplaced block."""
    found: list[dict[str, Any]] = []
    if system := _system_text(fields.system):
        found.append({"role": "system", "content": system})
    for i, message in enumerate(fields.messages):
        found += _read(message, f"messages[{i}]")
    return merge_consecutive_roles(found)


def continues_final(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the answer continues the last message."""
    last = messages[-1] if messages else {}
    return (
        last.get("role") == "assistant" and bool(last.get("content")) and not last.get("tool_calls")
    )


def tools_of(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return tools in the form of chat templates.

    Raises `InvalidRequest` for tools that run on Anthropic's servers.
    """
    for i, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            raise InvalidRequest(
                f"tools[{i}].type",
                f"{tool.type[:80]!r} is run, or known, by Anthropic's servers and not served here; "
                "give a tool of your own, with `name` and `input_schema`.",
            )
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                **({"description": tool.description} if tool.description else {}),
                "parameters": tool.input_schema or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def choice_of(fields: CountFields) -> tuple[Any, bool]:
    """Return the tool choice, and whether the answer may have several calls."""
    choice = fields.tool_choice
    if choice is None:
        return None, True
    parallel = not choice.disable_parallel_tool_use
    if choice.type == "tool":
        if not choice.name:
            raise InvalidRequest(
                "tool_choice.name", "is missing; it says which tool is to be called."
            )
        return {"type": "function", "function": {"name": choice.name}}, parallel
    return {"auto": "auto", "any": "required", "none": "none"}[choice.type], parallel


def response_format(fields: CountFields) -> dict[str, Any]:
    """Return the `response_format` of the answer; empty for plain text."""
    form = (
        fields.output_format
        if fields.output_config is None
        else fields.output_config.format or fields.output_format
    )
    return (
        {}
        if form is None
        else {"response_format": {"type": "json_schema", "json_schema": {"schema": form.schema}}}
    )


def with_client_names(error: InvalidRequest, *, forced: bool) -> InvalidRequest:
    """Return an error that names the field as Anthropic's clients write it.

    `forced`: the request forces a tool call.
    """
    form = "tools" if forced else "output_config.format.schema"
    names = {**_NAMES, "structured_outputs.json": form, "structured_outputs.structural_tag": form}
    field = error.field.replace(".function.parameters", ".input_schema").replace(".function", "")
    return with_client_field(error.renamed(field), names)


def _system_text(system: str | list[TextBlock]) -> str:
    texts = [system] if isinstance(system, str) else [block.text for block in system]
    return "\n".join(text for text in texts if text and not text.startswith(_BILLING))


def _read(message: Message, where: str) -> list[dict[str, Any]]:
    """Return the messages for one of Anthropic's; tool results become messages of their own."""
    blocks: list[Block] = (
        [TextBlock(message.content)] if isinstance(message.content, str) else message.content
    )
    if message.role == "assistant":
        return [_assistant_message(blocks, f"{where}.content")]
    found: list[dict[str, Any]] = []
    parts: list[str | MediaSource] = []
    images: list[MediaSource] = []
    for i, block in enumerate(blocks):
        field = f"{where}.content[{i}]"
        if isinstance(block, ToolResultBlock) and message.role == "user":
            found += _part_message(parts, message.role)
            parts = []
            content, own = _result(block, field)
            images += own
            found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
        else:
            parts.append(_part(block, field))
    # Templates show tool results as text: their images follow in the user's message.
    return found + _part_message([*images, *parts], message.role)


def _part_message(parts: Sequence[str | MediaSource], role: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": content_of(parts)}] if parts else []


def _assistant_message(blocks: Sequence[Block], where: str) -> dict[str, Any]:
    """Return a message of the model."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        match block:
            case ToolUseBlock():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ThinkingBlock():
                thoughts.append(block.thinking or decode_reasoning(block.signature))
            case RedactedThinkingBlock():
                pass  # only Anthropic's servers can read it
            case _:
                texts.append(_text(block, f"{where}[{i}]"))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _result(block: ToolResultBlock, where: str) -> tuple[str, list[MediaSource]]:
    """Return the text of a tool result, and its images."""
    content = block.content or ""
    images: list[MediaSource] = []
    if not isinstance(content, str):
        parts = [_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
        images = [part for part in parts if isinstance(part, MediaSource)]
        content = "\n".join(part for part in parts if isinstance(part, str)) or (
            IMAGE_RESULT if images else ""
        )
    return f"Error: {content}" if block.is_error else content, images


def _part(block: Block, where: str) -> str | MediaSource:
    """Return a block as its text, or the source of its image."""
    return _image(block, where) if isinstance(block, ImageBlock) else _text(block, where)


def _image(block: ImageBlock, where: str) -> MediaSource:
    field = f"{where}.source"
    source = block.source
    match source.get("type"):
        case "base64" if isinstance(source.get("data"), str):
            return MediaSource("image", field, base64=source["data"])
        case "url":
            return image_source(source.get("url"), f"{field}.url")
    raise InvalidRequest(
        field,
        f"got type {source.get('type')!r:.80}; expected 'base64' with data, or 'url'. Change it.",
    )


def _text(block: Block, where: str) -> str:
    match block:
        case TextBlock():
            return block.text
        case DocumentBlock() if block.source.get("type") == "text" and isinstance(
            block.source.get("data"), str
        ):
            return "\n".join(filter(None, (block.title, block.source["data"])))
        case ImageBlock() | DocumentBlock():
            raise InvalidRequest(
                where,
                f"got a part of type {'image' if isinstance(block, ImageBlock) else 'document'!r}; "
                "expected text here. Send it as text.",
            )
    raise InvalidRequest(where, "is not allowed in this message; it takes text and tool results.")
