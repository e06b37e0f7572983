"""Requests of the Responses API become conversations: items become the messages that chat templates
read.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from builtin_plugins.routes.conversation.asked import thinks
from builtin_plugins.routes.conversation.fields import as_typed
from builtin_plugins.routes.conversation.messages import in_turns, unpacked
from builtin_plugins.routes.responses.fields import InputFields, Item, Part
from builtin_plugins.routes.responses.tools import shown_name
from core.api import InvalidRequest

_TEXTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
"""Types of items that are read, and how their ids begin."""
_REFERENCE: Final = "item_reference"
MOST_REFERENCES: Final = 1000
_NAMES: Final = {
    "messages": "input",
    "prompt": "input",
    "sampling_params": "model",
    "extra_args": "vllm_xargs",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
}
"""Fields as the client knows them, by the engine's names."""


def new_id(kind: str) -> str:
    """Return an id for an item of a type."""
    return f"{_PREFIXES[kind]}_{secrets.token_hex(16)}"


def references(given: str | Sequence[Item]) -> frozenset[str]:
    """Return the ids of items that an input has by reference alone."""
    return frozenset(
        item.id or "" for item in given if isinstance(item, Item) and item.type == _REFERENCE
    )


def items_of(
    given: str | Sequence[Item], kept: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the items of an input, each with id, type and what counts for it. Raises
    `InvalidRequest` by place.

    `kept` has those that are there by reference.
    """
    if isinstance(given, str):
        given = [Item(role="user", content=given)]
    return [
        _referred(item, f"input[{i}].id", kept)
        if item.type == _REFERENCE
        else _item(item, f"input[{i}]")
        for i, item in enumerate(given)
    ]


def messages_of(
    instructions: str | None, items: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the messages that instructions and items make."""
    told = [{"role": "system", "content": instructions}] if instructions else []
    return in_turns([*told, *map(_message, items)])


def template_kwargs(fields: InputFields) -> dict[str, Any]:
    """Return what chat templates are told."""
    effort = fields.reasoning.effort if fields.reasoning else None
    kwargs = (
        thinks(False)
        if effort == "none"
        else {}
        if effort is None
        else {"reasoning_effort": effort}
    )
    return kwargs | fields.chat_template_kwargs


def response_format(fields: InputFields) -> dict[str, Any]:
    """Return the sampling parameter for the form of the answer."""
    form = fields.text.format if fields.text else None
    if form is None or form.type == "text":
        return {}
    if form.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    if form.schema is None:
        raise InvalidRequest("text.format.schema", "is missing.")
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": form.schema}}}


def as_written(error: InvalidRequest, *, forced: bool) -> InvalidRequest:
    """Return a refusal that names the field as clients of this API write it; `forced`: a tool had
    to be called.
    """
    form = "tools" if forced else "text.format.schema"
    names = {**_NAMES, "structured_outputs.json": form, "structured_outputs.structural_tag": form}
    names["structured_outputs.json_object"] = "text.format"
    field = error.field.replace(".function", "")
    return as_typed(error.renamed(field), names)


def _referred(item: Item, where: str, kept: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    found = kept.get(item.id or "")
    if found is None:
        raise InvalidRequest(
            where, f"{item.id!r:.100} is no item of a response that is kept here; send the item."
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
            texts = _texts(item.content, f"{where}.content")
            return {
                **found,
                "role": item.role,
                "content": [{"type": kind_of_text, "text": text} for text in texts],
            }
        case "reasoning":
            del found["status"]
            texts = _texts(item.content, f"{where}.content") or list(
                filter(None, [unpacked(item.encrypted_content)])
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
        case "function_call_output" | "custom_tool_call_output":
            output = "\n".join(_texts(item.output, f"{where}.output"))
            return {**found, "call_id": _needed(item.call_id, f"{where}.call_id"), "output": output}
    call = {
        "call_id": _needed(item.call_id, f"{where}.call_id"),
        "name": _needed(item.name, f"{where}.name"),
    }
    if item.namespace:
        call["namespace"] = item.namespace
    if kind == "custom_tool_call":
        return {**found, **call, "input": item.input or ""}
    return {**found, **call, "arguments": _arguments(item.arguments, f"{where}.arguments")}


def _texts(content: str | Sequence[Part] | None, where: str) -> list[str]:
    if content is None or isinstance(content, str):
        return [content] if content else []
    texts = []
    for i, part in enumerate(content):
        if part.type not in (*_TEXTS, "refusal"):
            raise InvalidRequest(
                f"{where}[{i}].type",
                f"parts of type {part.type[:80]!r} cannot be read by this model; it takes text.",
            )
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise InvalidRequest(f"{where}[{i}].text", "is missing.")
        texts.append(text)
    return texts


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


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message that an item is part of."""
    match item["type"]:
        case "message":
            # What developers say, few templates know how to show; all know the system.
            role = "system" if item["role"] == "developer" else item["role"]
            return {"role": role, "content": _joined(item["content"])}
        case "reasoning":
            return {
                "role": "assistant",
                "content": "",
                "reasoning_content": _joined(item["content"] or item["summary"]),
            }
        case "function_call_output" | "custom_tool_call_output":
            return {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
    name = shown_name(item["name"], item.get("namespace"))
    arguments: Any = (
        {"input": item["input"]} if "input" in item else msgspec.json.decode(item["arguments"])
    )
    call = {
        "id": item["call_id"],
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _joined(parts: Iterable[Mapping[str, str]]) -> str:
    return "\n".join(part["text"] for part in parts)
