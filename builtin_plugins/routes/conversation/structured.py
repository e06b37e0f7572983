"""`response_format` and `structured_outputs` of a request become the form its output must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.api import InvalidRequest, StructuredOutputsParams, did_you_mean

_FIELDS: Final = tuple(
    name for name in StructuredOutputsParams.__struct_fields__ if name != "backend"
)
_TYPES: Final = ("text", "json_object", "json_schema", "structural_tag")


def structured_outputs(given: Mapping[str, Any]) -> StructuredOutputsParams | None:
    """Return the form that a request asks for, or None. Raises `InvalidRequest` naming the field."""
    own = _own(given.get("structured_outputs"))
    openai = _of_response_format(given.get("response_format"))
    if own is not None and openai is not None:
        raise InvalidRequest(
            "structured_outputs", "and response_format are given; leave one of them out."
        )
    return own or openai


def typed_fields(given: Mapping[str, Any], *, forced: bool = False) -> dict[str, str]:
    """Return what the client wrote where a refusal names `structured_outputs`; `forced`: it asked
    for a tool's call.
    """
    form = given.get("response_format")
    if not (forced or isinstance(form, Mapping)):
        return {}
    place = "tools" if forced else "response_format"
    if isinstance(form, Mapping) and not forced and form.get("type") == "json_schema":
        place += ".json_schema.schema"
    return {
        f"structured_outputs.{kind}": place for kind in ("json", "json_object", "structural_tag")
    }


def _own(value: Any) -> StructuredOutputsParams | None:
    if value in (None, {}):
        return None
    value = _object("structured_outputs", value)
    for name in value:
        if name not in _FIELDS:
            hint = did_you_mean(name, _FIELDS) or f"; it has {', '.join(_FIELDS)}"
            raise InvalidRequest(
                f"structured_outputs.{name[:100]}", f"is not a field of structured_outputs{hint}."
            )
    return _convert({name: item for name, item in value.items() if item is not None})


def _of_response_format(value: Any) -> StructuredOutputsParams | None:
    """Take OpenAI's field; its `strict` asks for what always holds here."""
    if value is None:
        return None
    value = _object("response_format", value)
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "structural_tag":
        return _renamed(lambda: _convert({"structural_tag": dict(value)}), "response_format")
    if kind != "json_schema":
        raise InvalidRequest(
            "response_format.type", f"must be one of {', '.join(_TYPES)}, not {kind!r:.80}."
        )
    named = _object("response_format.json_schema", value.get("json_schema"))
    schema = named.get("schema", named.get("json_schema"))
    if schema is None:
        raise InvalidRequest("response_format.json_schema.schema", "is missing.")
    return _renamed(lambda: _convert({"json": schema}), "response_format.json_schema.schema")


def _object(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(field, f"must be an object, not {value!r:.80}.")
    return value


def _convert(fields: dict[str, Any]) -> StructuredOutputsParams:
    try:
        return msgspec.convert(fields, StructuredOutputsParams)
    except InvalidRequest:
        raise
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidRequest):
            raise error.__cause__ from None
        text, _, place = str(error).partition(" - at `$")
        raise InvalidRequest(
            f"structured_outputs{place.rstrip('`')}", f"{text[:1].lower()}{text[1:]}."
        ) from error


def _renamed(make: Any, field: str) -> StructuredOutputsParams:
    """Return what `make` does; what it refuses is named as the client knows it."""
    try:
        made: StructuredOutputsParams = make()
    except InvalidRequest as error:
        raise error.renamed(field) from error
    return made
