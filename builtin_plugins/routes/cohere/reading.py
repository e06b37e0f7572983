"""Converts Cohere's requests to conversations in the form of chat templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from builtin_plugins.routes.cohere.fields import (
    ChatFields,
    DocumentPart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
)
from builtin_plugins.routes.common.conversation import content_of, merge_consecutive_roles
from builtin_plugins.routes.common.fields import with_client_field
from builtin_plugins.routes.common.media_parts import image_source
from builtin_plugins.routes.media import MediaSource
from core.api import InvalidRequest

_NAMES: Final = {
    "prompt": "messages",
    "sampling_params": "model",
    "extra_args": "vllm_xargs",
    "stop": "stop_sequences",
    "top_k": "k",
    "top_p": "p",
    "response_format.json_schema.schema": "response_format.json_schema",
    "thinking_token_budget": "thinking.token_budget",
}
"""The client's field names, by the engine's."""
_CHOICES: Final = {"REQUIRED": "required", "NONE": "none", None: None}


def messages_of(fields: ChatFields) -> list[dict[str, Any]]:
    """Return the messages of a request. Raises `InvalidRequest` for misplaced content."""
    return merge_consecutive_roles(
        [_read(message, f"messages[{i}]") for i, message in enumerate(fields.messages)]
    )


def tools_of(fields: ChatFields) -> list[dict[str, Any]]:
    """Return tools in the form of chat templates."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                **({"description": tool.function.description} if tool.function.description else {}),
                "parameters": tool.function.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in fields.tools
    ]


def choice_of(fields: ChatFields) -> str | None:
    """Return the tool choice."""
    return _CHOICES[fields.tool_choice]


def template_kwargs(fields: ChatFields) -> dict[str, Any]:
    """Return the arguments of the chat template."""
    kwargs: dict[str, Any] = {}
    if fields.documents:
        kwargs["documents"] = [_document(each) for each in fields.documents]
    return kwargs | fields.chat_template_kwargs


def response_format(fields: ChatFields) -> dict[str, Any]:
    """Return the `response_format` of the answer; empty for plain text."""
    form = fields.response_format
    if form is None or form.type == "text":
        return {}
    if form.json_schema is None:
        return {"response_format": {"type": "json_object"}}
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": form.json_schema}}}


def sampling_overrides(fields: ChatFields) -> dict[str, Any]:
    """Return the sampling parameters that have other names in Cohere's API."""
    found = {
        "max_tokens": fields.max_tokens,
        "stop": fields.stop_sequences or None,
        "top_k": fields.k,
        "top_p": fields.p,
        "logprobs": 0 if fields.logprobs else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def with_client_names(error: InvalidRequest, *, forced: bool) -> InvalidRequest:
    """Return an error that names the field as Cohere's clients write it.

    `forced`: the request forces a tool call.
    """
    form = "tools" if forced else "response_format.json_schema"
    return with_client_field(
        error,
        {**_NAMES, "structured_outputs.json": form, "structured_outputs.structural_tag": form},
    )


def _read(message: Message, where: str) -> dict[str, Any]:
    parts: Sequence[Part] = (
        [TextPart(message.content)] if isinstance(message.content, str) else message.content or ()
    )
    if message.role == "user":
        return {"role": "user", "content": content_of(_user_parts(parts, f"{where}.content"))}
    thoughts = [part.thinking for part in parts if isinstance(part, ThinkingPart)]
    texts = [
        _text(part, f"{where}.content[{i}]")
        for i, part in enumerate(parts)
        if not isinstance(part, ThinkingPart)
    ]
    if message.role == "tool":
        if message.tool_call_id is None:
            raise InvalidRequest(
                f"{where}.tool_call_id", "is missing; it says which call this is the result of."
            )
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": "\n".join(texts)}
    if message.role != "assistant":
        return {"role": message.role, "content": "\n".join(texts)}
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "\n".join(filter(None, (message.tool_plan, *texts))),
    }
    if thoughts:
        answer["reasoning_content"] = "\n".join(thoughts)
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        answer["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments, f"{where}.tool_calls[{i}]"),
                },
            }
            for i, call in calls
        ]
    return answer


def _user_parts(parts: Sequence[Part], where: str) -> list[str | MediaSource]:
    """Return the texts and images of a user's message."""
    found: list[str | MediaSource] = []
    for i, part in enumerate(parts):
        if isinstance(part, ImagePart):
            given = part.image_url
            url = given.get("url") if isinstance(given, Mapping) else given
            detail = given.get("detail") if isinstance(given, Mapping) else None
            found.append(image_source(url, f"{where}[{i}].image_url", detail=detail))
        elif not isinstance(part, ThinkingPart):
            found.append(_text(part, f"{where}[{i}]"))
    return found


def _arguments(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest(f"{where}.function.arguments", "must be a JSON object, as text.")
    return found


def _text(part: Part, where: str) -> str:
    match part:
        case TextPart(text):
            return text
        case DocumentPart(document):
            return json.dumps(document.get("data", document), ensure_ascii=False)
        case ImagePart():
            raise InvalidRequest(where, "got an image; expected text here. Send it as the user.")
    raise InvalidRequest(where, "is not allowed in this message; it takes text.")


def _document(given: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, str):
        return {"text": given}
    data = given.get("data", given)
    return (
        {"text": data}
        if isinstance(data, str)
        else dict(data)
        if isinstance(data, Mapping)
        else {"text": str(data)}
    )
