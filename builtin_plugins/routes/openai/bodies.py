"""JSON schemas of the OpenAI requests, from the tables in `fields` that read them."""

from __future__ import annotations

from typing import Any, Final

from builtin_plugins.routes.conversation.fields import SAMPLING_FIELDS
from builtin_plugins.routes.openai.fields import (
    MAX_PROMPTS,
    UNSERVED,
    WITHOUT_EFFECT,
    ChatFields,
    CompletionFields,
)
from builtin_plugins.routes.schema import body_schema, bounded_schemas, struct_schema
from core.api import Names, SamplingParams, StructuredOutputsParams

_RESPONSE_FORMAT: Final = {
    "type": "object",
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]},
        "json_schema": {"type": "object", "properties": {"schema": {"type": "object"}}},
    },
    "required": ["type"],
}
_MESSAGES: Final = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"type": "string", "minLength": 1},
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "object"}},
                    {"type": "null"},
                ]
            },
        },
    },
}


def bodies(names: Names, vocab_size: int, *, strict: bool) -> dict[str, dict[str, Any]]:
    """Return the schema of each path's body; `names` are the fields that features read."""
    others = _others(names)
    completions = body_schema(CompletionFields, others, strict=strict)
    completions["properties"]["prompt"] = _prompt(vocab_size)
    chat = body_schema(ChatFields, others, strict=strict)
    chat["properties"]["messages"] = _MESSAGES
    return {"/v1/completions": completions, "/v1/chat/completions": chat}


def _prompt(vocab_size: int) -> dict[str, Any]:
    """Return the schema of a text, token ids, or several of one of them."""
    text = {"type": "string", "minLength": 1}
    ids = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1},
    }
    several = {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_PROMPTS,
        "items": {"anyOf": [text, ids]},
    }
    return {"anyOf": [text, ids, several]}


def _others(names: Names) -> dict[str, Any]:
    others: dict[str, Any] = dict(bounded_schemas(SamplingParams, SAMPLING_FIELDS))
    stop = others.pop("stop")
    told = {name: stop.pop(name) for name in ("description", "default")}
    others["stop"] = {**told, "anyOf": [{"type": "string", "minLength": 1}, stop]}
    others["response_format"] = _RESPONSE_FORMAT
    others["structured_outputs"] = struct_schema(StructuredOutputsParams, ("backend",))
    others |= {name: {"description": "Has no effect."} for name in WITHOUT_EFFECT}
    for name, (neutral, missing) in UNSERVED.items():
        alike = [value for i, value in enumerate(neutral) if value not in neutral[:i]]
        others[name] = {"description": f"{missing}.", "enum": [*alike, None]}
    return others | {name: {"description": "Read by a plugin."} for name in names.read}
