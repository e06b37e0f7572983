"""Converts the sampling fields of a request to `SamplingParams`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from builtin_plugins.routes.common.fields import SAMPLING_FIELDS
from core.api import InvalidRequest, RequestOutputKind, SamplingParams, did_you_mean
from core.api.sampling import StructuredOutputsParams

_INT64 = 2**63


def sampling_params(
    given: Mapping[str, Any], defaults: Mapping[str, Any], *, stream: bool, **overrides: Any
) -> SamplingParams:
    """Return validated parameters: `overrides`, then `given`, then `defaults`.

    Raises `InvalidRequest` with the field and its limit.
    """
    values = {name: value for name, value in defaults.items() if name in SAMPLING_FIELDS}
    values |= {name: value for name, value in given.items() if name in SAMPLING_FIELDS}
    if "logit_bias" in values:
        values["logit_bias"] = _bias(values["logit_bias"])
    if "logit_bias" in values and not values["logit_bias"]:
        del values["logit_bias"]
    values["structured_outputs"] = structured_outputs(given)
    values |= overrides
    for name, value in values.items():
        if isinstance(value, int) and not -_INT64 <= value < _INT64:
            raise InvalidRequest(name, f"must fit 64 bits, not {value}.")
    if isinstance(values.get("stop"), str):
        values["stop"] = [values["stop"]]
    kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams.from_optional(**values, output_kind=kind)


def _bias(bias: Any) -> Any:
    """Return the bias by token id; JSON keys are strings."""
    if not isinstance(bias, Mapping):
        return bias  # rejected by the validation of SamplingParams
    out: dict[Any, Any] = {}
    for token, value in bias.items():
        if isinstance(token, str) and not (token.isascii() and token.isdigit() and len(token) < 19):
            raise InvalidRequest(
                "logit_bias", f"token ids must be integers from 0, not {token[:32]!r}."
            )
        out[int(token)] = value
    return out


_FIELDS: Final = tuple(
    name for name in StructuredOutputsParams.__struct_fields__ if name != "backend"
)
_TYPES: Final = ("text", "json_object", "json_schema", "structural_tag")


def structured_outputs(given: Mapping[str, Any]) -> StructuredOutputsParams | None:
    """Return the constraint of a request's output, or None. Raises `InvalidRequest`."""
    own = _from_own_field(given.get("structured_outputs"))
    openai = _from_response_format(given.get("response_format"))
    if own is not None and openai is not None:
        raise InvalidRequest(
            "structured_outputs", "and response_format are given; leave one of them out."
        )
    return own or openai


def structured_output_fields(given: Mapping[str, Any], *, forced: bool = False) -> dict[str, str]:
    """Return the client's field names, by those of `structured_outputs`.

    `forced`: the request forces a tool call.
    """
    form = given.get("response_format")
    if not (forced or isinstance(form, Mapping)):
        return {}
    field = "tools" if forced else "response_format"
    if isinstance(form, Mapping) and not forced and form.get("type") == "json_schema":
        field += ".json_schema.schema"
    kinds = ("json", "json_object", "structural_tag")
    return {f"structured_outputs.{kind}": field for kind in kinds}


def _from_own_field(value: Any) -> StructuredOutputsParams | None:
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


def _from_response_format(value: Any) -> StructuredOutputsParams | None:
    """Return the constraint of OpenAI's field. Its `strict` has no effect: it always applies."""
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
        text, _, path = str(error).partition(" - at `$")
        raise InvalidRequest(
            f"structured_outputs{path.rstrip('`')}", f"{text[:1].lower()}{text[1:]}."
        ) from error


def _renamed(make: Any, field: str) -> StructuredOutputsParams:
    """Return the result of `make`; its errors name `field`."""
    try:
        made: StructuredOutputsParams = make()
    except InvalidRequest as error:
        raise error.renamed(field) from error
    return made
