"""Converts client messages to the plain data that templates read; errors name the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builtin_plugins.output_parsers.api import call_arguments
from core.api import InvalidRequest

_REASONING = ("reasoning_content", "thinking", "reasoning")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
MEDIA_PARTS = ("image",)
"""Types of parts that a template shows as placeholders; the engine gets their content."""
MAX_MESSAGES = 10_000


def plain_messages(
    messages: Sequence[Mapping[str, Any]], *, keep_parts: bool, has_developer: bool = True
) -> list[dict[str, Any]]:
    """Return copies of the messages, with contents as texts, or as lists of parts if `keep_parts`.

    A part `{"type": "image"}` stays: the template writes a placeholder for it.
    Calls have objects as arguments. The role developer is system unless `has_developer`.
    Raises `InvalidRequest` with the path of the field, such as `messages[2].content[0]`.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidRequest(
            "messages", f"must be a list of messages, not {type(messages).__name__}."
        )
    if not messages:
        raise InvalidRequest("messages", "is empty; at least one message is needed.")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(
            "messages", f"holds {len(messages)} messages, at most {MAX_MESSAGES} are allowed."
        )
    found = [_message(message, f"messages[{i}]", keep_parts) for i, message in enumerate(messages)]
    for message in found:
        if message["role"] == "developer" and not has_developer:
            message["role"] = "system"
    return found


def _message(message: Any, where: str, keep_parts: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(
            where, f"must be an object with role and content, not {type(message).__name__}."
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where}.role", f"must be a text such as 'user', not {role!r}.")
    out: dict[str, Any] = {
        **message,
        "content": _content(message.get("content"), f"{where}.content", keep_parts),
    }
    if message.get("tool_calls") is not None:
        out["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is not None:  # templates use either name
        out = {"thinking": reasoning, **out, "reasoning_content": reasoning}
    return out


def _content(content: Any, where: str, keep_parts: bool) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        text = content or ""
        return [{"type": "text", "text": text}] if keep_parts else text
    if isinstance(content, Mapping):
        part = _part(content, where) if keep_parts else _part_text(content, where)
        return [part] if isinstance(part, dict) else part
    if not isinstance(content, list):
        raise InvalidRequest(
            where, f"must be a text, a part or a list of parts, not {type(content).__name__}."
        )
    if keep_parts:
        return [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]
    return "\n".join([_part_text(part, f"{where}[{i}]") for i, part in enumerate(content)])


def has_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a message has parts in addition to text."""
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    return any(
        _is_media(part) for content in contents if isinstance(content, list) for part in content
    )


def _is_media(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in MEDIA_PARTS


def _part(part: Any, where: str) -> dict[str, Any]:
    if _is_media(part):
        return {"type": part["type"]}
    return {"type": "text", "text": _part_text(part, where)}


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidRequest(where, f"must be an object with a type, not {type(part).__name__}.")
    kind = part.get("type", "text")
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise InvalidRequest(
            where, f"parts of type {kind!r} cannot be read by this model; it takes text."
        )
    text = part.get(key)
    if text is None and "type" not in part:
        raise InvalidRequest(
            f"{where}.type", "got none; expected that of the part, such as 'text'. Set it."
        )
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.{key}", f"must be a text, not {text!r}.")
    return text


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Return the calls with parsed arguments: clients send JSON text, templates read objects."""
    if not isinstance(calls, list):
        raise InvalidRequest(where, f"must be a list, not {type(calls).__name__}.")
    out = []
    for i, call in enumerate(calls):
        if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
            raise InvalidRequest(f"{where}[{i}]", "must be an object with a function.")
        function = dict(call["function"])
        function["arguments"] = call_arguments(function.get("arguments"))
        out.append({**call, "function": function})
    return out
