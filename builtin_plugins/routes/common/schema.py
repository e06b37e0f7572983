"""JSON schemas of request bodies, generated from the structs that parse them."""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from core.api.features import MAX_ITEM_CHARS, Bound

_REFS: Final = "#/{name}"


def body_schema(
    struct: type[msgspec.Struct],
    others: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    strict: bool = False,
) -> dict[str, Any]:
    """Return the schema of a body that `read_request` reads into `struct`, without references.

    `others` are schemas of further known fields. Every field with a default also accepts null.
    `strict` refuses unknown fields.
    """
    schema = _type_schema(struct)
    required = schema.get("required", ())
    properties = {
        name: inner for name, inner in schema["properties"].items() if not name.startswith("_")
    }
    properties |= {
        name: dict(inner) for name, inner in (others or {}).items() if name not in properties
    }
    schema["properties"] = {
        name: inner if name in required else _or_null(inner)
        for name, inner in sorted(properties.items())
    }
    if strict:
        schema["additionalProperties"] = False
    return schema


def bounded_schemas(
    catalogue: type[msgspec.Struct], names: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return schemas of annotated request parameters: type, limits, default and meaning."""
    hints = typing.get_type_hints(catalogue, include_extras=True)
    defaults = {field.name: field for field in msgspec.structs.fields(catalogue)}
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        metadata = getattr(hints[name], "__metadata__", ())
        bound = next((each for each in metadata if isinstance(each, Bound)), None)
        if bound is None:
            continue
        kind = typing.get_args(hints[name])[0]
        schema = {"description": bound.doc, **_limited(_type_schema(kind), bound)}
        field = defaults[name]
        default = field.default
        if default is msgspec.NODEFAULT:
            default = field.default_factory()
        found[name] = schema if default is None else schema | {"default": default}
    return found


def struct_schema(struct: type[msgspec.Struct], leave_out: Collection[str] = ()) -> dict[str, Any]:
    """Return the schema of an object inside a body, without unknown fields."""
    schema = body_schema(struct, strict=True)
    schema["properties"] = {
        name: inner for name, inner in schema["properties"].items() if name not in leave_out
    }
    return schema


def _type_schema(kind: Any) -> dict[str, Any]:
    (schema,), parts = msgspec.json.schema_components([kind], ref_template=_REFS)
    whole: dict[str, Any] = _inlined(schema, parts)
    return whole


def _inlined(schema: Any, parts: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """Return a schema with its references replaced by their targets.

    A value that contains one of its own kind, as nested lists of JSON, may be anything there.
    """
    if isinstance(schema, dict):
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/")
            return {} if name in inside else _inlined(parts[name], parts, (*inside, name))
        # Each alternative has its tag as a constant; the mapping would name inlined schemas.
        return {
            name: _inlined(inner, parts, inside)
            for name, inner in schema.items()
            if name != "discriminator"
        }
    if isinstance(schema, list):
        return [_inlined(inner, parts, inside) for inner in schema]
    return schema


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    annotations: dict[str, Any] = {
        name: schema[name] for name in ("description", "default") if name in schema
    }
    rest = {name: inner for name, inner in schema.items() if name not in annotations}
    if not rest or None in rest.get("enum", ()) or {"type": "null"} in rest.get("anyOf", ()):
        return schema
    return {**annotations, "anyOf": [rest, {"type": "null"}]}


def _limited(schema: dict[str, Any], bound: Bound) -> dict[str, Any]:
    """Return a schema with the limits of a field, in the keywords of its type."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_limited(each, bound) for each in schema["anyOf"]]}
    kind = schema.get("type")
    if kind in ("integer", "number"):
        limits = {}
        if bound.low is not None:
            limits["exclusiveMinimum" if bound.low_open else "minimum"] = bound.low
        if bound.high is not None:
            limits["maximum"] = bound.high
        return schema | limits
    if kind == "array":
        items = _limited(schema.get("items", {}), Bound(bound.doc, bound.low, bound.high))
        size = {} if bound.max_items is None else {"maxItems": bound.max_items}
        return schema | {"items": items} | size
    if kind == "object":
        values = _limited(
            schema.get("additionalProperties") or {}, Bound(bound.doc, bound.low, bound.high)
        )
        size = {} if bound.max_items is None else {"maxProperties": bound.max_items}
        return schema | {"additionalProperties": values} | size
    return schema | {"maxLength": MAX_ITEM_CHARS} if kind == "string" else schema
