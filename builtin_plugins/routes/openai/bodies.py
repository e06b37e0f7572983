"""JSON schemas of the OpenAI requests, from the tables in `fields` that read them."""

from __future__ import annotations

from typing import Any, Final

from builtin_plugins.routes.conversation.fields import SAMPLING_FIELDS
from builtin_plugins.routes.openai.fields import (
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


def bodies(names: Names, *, strict: bool) -> dict[str, dict[str, Any]]:
    """Return the schema of each path's body; `names` are the fields that features read."""
    others = _others(names)
    return {
        "/v1/completions": body_schema(CompletionFields, others, strict=strict),
        "/v1/chat/completions": body_schema(ChatFields, others, strict=strict),
    }


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
