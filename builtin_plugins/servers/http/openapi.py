"""`/openapi.json`: what the routes that exist take, in OpenAPI 3.1. Knows routes and schemas, no endpoint."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from starlette.routing import Route

PATH: Final = "/openapi.json"
_PARAMETER: Final = re.compile(r"{(\w+)(?::\w+)?}")
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The field that is wrong."},
                "code": {"type": ["string", "integer", "null"]},
            },
        }
    },
}
_REFUSED: Final = {
    "description": "Refused, or failed; `param` names the field.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def document(
    routes: Sequence[Any], bodies: Mapping[str, Mapping[str, Any]], public: Collection[str], *, keyed: bool
) -> dict[str, Any]:
    """Return the description of routes. FastAPI's describe themselves, of others `bodies` has the schemas by path.

    `keyed`: all paths but the `public` ones want an API key.
    """
    found: dict[str, Any] = get_openapi(title="core", version=metadata.version("core"), routes=routes)
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    schemas["Error"] = _ERROR
    for route in routes:
        if type(route) is Route and route.include_in_schema:
            path = found["paths"].setdefault(_PARAMETER.sub(r"{\1}", route.path), {})
            path |= _operations(route, _named(bodies.get(route.path), schemas))
    if keyed:
        header = {"type": "apiKey", "in": "header", "name": "x-api-key"}
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}, "header": header}
        found["security"] = [{"key": []}, {"header": []}]
        for path in public & found["paths"].keys():
            for operation in found["paths"][path].values():
                operation["security"] = []
    return found


def _named(schema: Mapping[str, Any] | None, schemas: dict[str, Any]) -> Mapping[str, Any] | None:
    """Keep a schema under its title; return a reference to it."""
    if schema is None:
        return None
    schemas[schema["title"]] = schema
    return {"$ref": f"#/components/schemas/{schema['title']}"}


def _operations(route: Route, body: Mapping[str, Any] | None) -> Iterable[tuple[str, Any]]:
    doc = (getattr(route.endpoint, "__doc__", None) or "").strip()
    names = _PARAMETER.findall(route.path)
    for method in sorted((route.methods or set()) - {"HEAD"}):
        operation: dict[str, Any] = {
            "operationId": "_".join([method.lower(), *re.findall(r"\w+", route.path)]),
            "responses": {"200": {"description": "Done."}, "default": _REFUSED},
        }
        if doc:
            operation["summary"] = doc.splitlines()[0]
        if names:
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ]
        if body is not None:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
        yield method.lower(), operation
