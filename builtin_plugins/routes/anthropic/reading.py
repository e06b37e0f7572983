"""Anthropic's requests become conversations: blocks become the messages that chat templates read."""

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
from builtin_plugins.routes.conversation.asked import thinks
from builtin_plugins.routes.conversation.fields import as_typed
from builtin_plugins.routes.conversation.messages import in_turns, unpacked
from core.api import InvalidRequest

_BILLING: Final = "x-anthropic-billing-header:"
"""How a system block begins that Claude Code writes for Anthropic's servers. It is new in every
request, and in front of
everything: left in the prompt, no prefix of it would ever be found again."""
_NAMES: Final = {
    "prompt": "messages",
    "sampling_params": "model",
    "extra_args": "vllm_xargs",
    "stop": "stop_sequences",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format": "output_config.format",
}
"""Fields as the client knows them, by the engine's names."""


def messages_of(fields: CountFields) -> list[dict[str, Any]]:
    """Return the messages of a request.

    Raises `InvalidRequest` for a block that has no place there.
    """
    found: list[dict[str, Any]] = []
    if system := _system_text(fields.system):
        found.append({"role": "system", "content": system})
    for i, message in enumerate(fields.messages):
        found += _read(message, f"messages[{i}]")
    return in_turns(found)


def goes_on(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether the answer is to go on from the last message, instead of following it."""
    last = messages[-1] if messages else {}
    return (
        last.get("role") == "assistant" and bool(last.get("content")) and not last.get("tool_calls")
    )


def tools_of(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return tools as chat templates read them.

    Raises `InvalidRequest` for those that run on Anthropic's servers.
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
    """Return the choice of tools, and whether there may be several calls."""
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


def template_kwargs(fields: CountFields) -> dict[str, Any]:
    """Return what chat templates are told."""
    kwargs = {} if fields.thinking is None else thinks(fields.thinking.type != "disabled")
    if fields.output_config is not None and fields.output_config.effort is not None:
        kwargs["reasoning_effort"] = fields.output_config.effort
    return kwargs | fields.chat_template_kwargs


def response_format(fields: CountFields) -> dict[str, Any]:
    """Return the sampling parameter for the form of the answer."""
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


def as_written(error: InvalidRequest, *, forced: bool) -> InvalidRequest:
    """Return a refusal that names the field as Anthropic's clients write it; `forced`: a tool had
    to be called.
    """
    form = "tools" if forced else "output_config.format.schema"
    names = {**_NAMES, "structured_outputs.json": form, "structured_outputs.structural_tag": form}
    field = error.field.replace(".function.parameters", ".input_schema").replace(".function", "")
    return as_typed(error.renamed(field), names)


def _system_text(system: str | list[TextBlock]) -> str:
    texts = [system] if isinstance(system, str) else [block.text for block in system]
    return "\n".join(text for text in texts if text and not text.startswith(_BILLING))


def _read(message: Message, where: str) -> list[dict[str, Any]]:
    """Return the messages that one of Anthropic's is: results of tools are messages of their own."""
    blocks: list[Block] = (
        [TextBlock(message.content)] if isinstance(message.content, str) else message.content
    )
    if message.role == "assistant":
        return [_said(blocks, f"{where}.content")]
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    for i, block in enumerate(blocks):
        place = f"{where}.content[{i}]"
        if isinstance(block, ToolResultBlock) and message.role == "user":
            found += _told(texts, message.role)
            texts = []
            found.append(
                {
                    "role": "tool",
                    "tool_call_id": block.tool_use_id,
                    "content": _result(block, place),
                }
            )
        else:
            texts.append(_text(block, place))
    return found + _told(texts, message.role)


def _told(texts: list[str], role: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": "\n".join(texts)}] if texts else []


def _said(blocks: Sequence[Block], where: str) -> dict[str, Any]:
    """Return a message of the model's."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        match block:
            case ToolUseBlock():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ThinkingBlock():
                thoughts.append(block.thinking or unpacked(block.signature))
            case RedactedThinkingBlock():
                pass  # only Anthropic's servers can read it
            case _:
                texts.append(_text(block, f"{where}[{i}]"))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _result(block: ToolResultBlock, where: str) -> str:
    content = block.content or ""
    if not isinstance(content, str):
        content = "\n".join(_text(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    return f"Error: {content}" if block.is_error else content


def _text(block: Block, where: str) -> str:
    match block:
        case TextBlock():
            return block.text
        case DocumentBlock() if block.source.get("type") == "text" and isinstance(
            block.source.get("data"), str
        ):
            return "\n".join(filter(None, (block.title, block.source["data"])))
        case ImageBlock() | DocumentBlock():
            raise InvalidRequest(where, "cannot be read by this model; it takes text.")
    raise InvalidRequest(
        where, "has no place in this message: what is told is text and tool results."
    )
