"""Converts requests of the Responses API to conversations: items to messages of chat templates."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from builtin_plugins.routes.common.conversation import (
    content_of,
    decode_reasoning,
    merge_consecutive_roles,
)
from builtin_plugins.routes.common.fields import with_client_field
from builtin_plugins.routes.common.media_parts import image_source
from builtin_plugins.routes.media import MediaSource
from builtin_plugins.routes.responses.fields import InputFields, Item, Part
from builtin_plugins.routes.responses.tools import model_tool_name
from core.api import InvalidRequest

_TEXTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_IMAGE: Final = "input_image"
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
IMAGE_RESULT: Final = "[image]"
"""Text of a tool result with images only."""
_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
}
"""Prefixes of item ids, by supported item type."""
SUMMARY_INTRO: Final = "Summary of the conversation so far:"
"""Leading line of the message for a compaction item."""
_PHASES: Final = ("commentary", "final_answer")
_REFERENCE: Final = "item_reference"
MAX_REFERENCES: Final = 1000
"""Largest number of item references in one input."""
_NAMES: Final = {
    "messages": "input",
    "prompt": "input",
    "sampling_params": "model",
    "extra_args": "vllm_xargs",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "truncate_prompt_tokens": "truncation",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
}
"""The client's field names, by the engine's."""


def new_id(kind: str) -> str:
    """Return a new id for an item of this type."""
    return item_id(kind, secrets.token_hex(16))


def item_id(kind: str, digits: str) -> str:
    """Return the id of an item of this type."""
    return f"{_PREFIXES[kind]}_{digits}"


def references(given: str | Sequence[Item]) -> frozenset[str]:
    """Return the ids of the items that an input references; a text references none."""
    if isinstance(given, str):
        return frozenset()
    return frozenset(item.id or "" for item in given if item.type == _REFERENCE)


def items_of(
    given: str | Sequence[Item], referenced: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the items of an input, each with its id, type and relevant fields.

    `referenced` are the stored items, by id. Raises `InvalidRequest`.
    """
    if isinstance(given, str):
        given = [Item(role="user", content=given)]
    return [
        _referred(item, f"input[{i}].id", referenced)
        if item.type == _REFERENCE
        else _item(item, f"input[{i}]")
        for i, item in enumerate(given)
    ]


def with_placeholders(given: str | Sequence[Item], text: str) -> str | list[Item]:
    """Return the input with a text in place of each image."""
    if isinstance(given, str):
        return given
    return [_with_placeholders(item, text) for item in given]


def _with_placeholders(item: Item, text: str) -> Item:
    if not isinstance(item.content, list):
        return item
    parts = [
        Part(type="input_text", text=text) if part.type == _IMAGE else part for part in item.content
    ]
    return msgspec.structs.replace(item, content=parts)


def messages_of(
    instructions: str | None, items: Iterable[Mapping[str, Any]], num_stored: int = 0
) -> list[dict[str, Any]]:
    """Return the messages for instructions and items, of which the first `num_stored` are stored.

    Templates show tool results as text: their images follow in a message of the user.
    """
    found: list[dict[str, Any]] = []
    if instructions:
        found.append({"role": "system", "content": instructions})
    images: list[MediaSource] = []
    for i, item in enumerate(items):
        field = f"input[{i - num_stored}]" if i >= num_stored else "previous_response_id"
        if item["type"] == "mcp_list_tools":
            continue  # the request's tools are in the prompt
        message, own = _message(item, field)
        if images and message["role"] != "tool":
            found.append({"role": "user", "content": images})
            images = []
        found.append(message)
        if item["type"] == "mcp_call":
            found.append(_served_result(item))
        images += own
    if images:
        found.append({"role": "user", "content": images})
    return merge_consecutive_roles(found)


def response_format(fields: InputFields) -> dict[str, Any]:
    """Return the `response_format` of the answer; empty for plain text."""
    form = fields.text.format if fields.text else None
    if form is None or form.type == "text":
        return {}
    if form.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    if form.schema is None:
        raise InvalidRequest("text.format.schema", "is missing.")
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": form.schema}}}


def with_client_names(error: InvalidRequest, *, forced: bool) -> InvalidRequest:
    """Return an error that names the field as clients of this API write it.

    `forced`: the request forces a tool call.
    """
    form = "tools" if forced else "text.format.schema"
    names = {**_NAMES, "structured_outputs.json": form, "structured_outputs.structural_tag": form}
    names["structured_outputs.json_object"] = "text.format"
    field = error.field.replace(".function", "")
    return with_client_field(error.renamed(field), names)


def _referred(item: Item, where: str, referenced: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    found = referenced.get(item.id or "")
    if found is None:
        raise InvalidRequest(
            where, f"{item.id!r:.100} is not an item of a stored response; send the item."
        )
    return found


def _item(item: Item, where: str) -> dict[str, Any]:
    kind = item.type or "message"
    if kind not in _PREFIXES:
        raise InvalidRequest(
            f"{where}.type",
            f"items of type {kind[:80]!r} are not served; there are "
            f"{', '.join((*_PREFIXES, _REFERENCE))}.",
        )
    found: dict[str, Any] = {"id": item.id or new_id(kind), "type": kind, "status": "completed"}
    match kind:
        case "message":
            if item.role is None:
                raise InvalidRequest(f"{where}.role", "is missing.")
            kind_of_text = "output_text" if item.role == "assistant" else "input_text"
            if item.role == "assistant" and item.phase in _PHASES:
                found["phase"] = item.phase
            return {
                **found,
                "role": item.role,
                "content": _parts(item.content, f"{where}.content", kind_of_text),
            }
        case "reasoning":
            del found["status"]
            texts = _texts(item.content, f"{where}.content") or list(
                filter(None, [decode_reasoning(item.encrypted_content)])
            )
            summary = [
                {"type": "summary_text", "text": text}
                for text in _texts(item.summary, f"{where}.summary")
            ]
            return {
                **found,
                "summary": summary,
                "content": [{"type": "reasoning_text", "text": text} for text in texts],
            }
        case "compaction":
            del found["status"]
            return {**found, "encrypted_content": item.encrypted_content or ""}
        case "function_call_output" | "custom_tool_call_output":
            parts = _parts(item.output, f"{where}.output", "input_text")
            has_images = any(part["type"] == _IMAGE for part in parts)
            output = parts if has_images else "\n".join(part["text"] for part in parts)
            return {**found, "call_id": _needed(item.call_id, f"{where}.call_id"), "output": output}
    if kind == "mcp_list_tools":
        return {**found, "server_label": item.server_label or "", "tools": []}
    if kind == "mcp_call":
        return {
            **found,
            "server_label": _needed(item.server_label, f"{where}.server_label"),
            "name": _needed(item.name, f"{where}.name"),
            "arguments": _arguments(item.arguments, f"{where}.arguments"),
            "output": item.output if isinstance(item.output, str) else None,
            "error": None if item.error is None else str(item.error),
        }
    call = {
        "call_id": _needed(item.call_id, f"{where}.call_id"),
        "name": _needed(item.name, f"{where}.name"),
    }
    if item.namespace:
        call["namespace"] = item.namespace
    if kind == "custom_tool_call":
        return {**found, **call, "input": item.input or ""}
    return {**found, **call, "arguments": _arguments(item.arguments, f"{where}.arguments")}


def _parts(
    content: str | Sequence[Part] | None, where: str, kind_of_text: str
) -> list[dict[str, Any]]:
    """Return the parts of a content: texts as `kind_of_text`, and images."""
    if content is None or isinstance(content, str):
        return [{"type": kind_of_text, "text": content}] if content else []
    return [
        _image_part(part, f"{where}[{i}]")
        if part.type == _IMAGE
        else {"type": kind_of_text, "text": _part_text(part, f"{where}[{i}]")}
        for i, part in enumerate(content)
    ]


def _image_part(part: Part, where: str) -> dict[str, Any]:
    if part.file_id is not None:
        raise InvalidRequest(
            f"{where}.file_id",
            "got a file's id; expected image_url, since no files are stored. Send a data: URL.",
        )
    image_source(part.image_url, f"{where}.image_url", detail=part.detail)
    return {"type": _IMAGE, "image_url": part.image_url, "detail": part.detail or "auto"}


def _texts(content: str | Sequence[Part] | None, where: str) -> list[str]:
    if content is None or isinstance(content, str):
        return [content] if content else []
    return [_part_text(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _part_text(part: Part, where: str) -> str:
    if part.type not in (*_TEXTS, "refusal"):
        raise InvalidRequest(
            f"{where}.type", f"got {part.type[:80]!r}; expected a part with text. Send it as text."
        )
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise InvalidRequest(f"{where}.text", "is missing.")
    return text


def _arguments(arguments: Any, where: str) -> str:
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError, TypeError) as error:
        raise InvalidRequest(where, f"is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InvalidRequest(where, "must be the JSON text of an object.")
    return str(arguments or "{}")


def _needed(value: str | None, where: str) -> str:
    if not value:
        raise InvalidRequest(where, "is missing.")
    return value


def _message(item: Mapping[str, Any], field: str) -> tuple[dict[str, Any], list[MediaSource]]:
    """Return the message for an item, and the images of a tool result."""
    if item["type"] in _OUTPUTS:
        parts = item["output"]
        if isinstance(parts, str):
            parts = [{"type": "input_text", "text": parts}]
        read = _read_parts(parts, f"{field}.output")
        images = [part for part in read if isinstance(part, MediaSource)]
        text = "\n".join(part for part in read if isinstance(part, str))
        content = text or (IMAGE_RESULT if images else "")
        return {"role": "tool", "tool_call_id": item["call_id"], "content": content}, images
    return _own_message(item, field), []


def _own_message(item: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return the message for an item that is no result of a tool."""
    match item["type"]:
        case "message":
            # Few templates know the developer role; all know the system role.
            role = "system" if item["role"] == "developer" else item["role"]
            parts = _read_parts(item["content"], f"{field}.content")
            return {"role": role, "content": content_of(parts)}
        case "reasoning":
            return {
                "role": "assistant",
                "content": "",
                "reasoning_content": _joined(item["content"] or item["summary"]),
            }
        case "compaction":
            summary = decode_reasoning(item["encrypted_content"])
            return {"role": "user", "content": f"{SUMMARY_INTRO}\n{summary}"}
    namespace = item.get("namespace") or item.get("server_label")
    name = model_tool_name(item["name"], namespace)
    arguments: Any = {"input": item["input"]} if "input" in item else _object(item["arguments"])
    call = {
        "id": item["id" if item["type"] == "mcp_call" else "call_id"],
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _object(arguments: str) -> Any:
    """Return the object of a call's arguments; an empty one for what a model wrote wrong."""
    try:
        return msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return {}


def _served_result(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message with the result of a call at a tool server."""
    content = item["output"] or item["error"] or ""
    return {"role": "tool", "tool_call_id": item["id"], "content": content}


def _read_parts(parts: Iterable[Mapping[str, Any]], field: str) -> list[str | MediaSource]:
    """Return the texts and images of an item."""
    return [
        image_source(part["image_url"], f"{field}[{i}].image_url")
        if part["type"] == _IMAGE
        else part["text"]
        for i, part in enumerate(parts)
    ]


def _joined(parts: Iterable[Mapping[str, str]]) -> str:
    return "\n".join(part["text"] for part in parts)
