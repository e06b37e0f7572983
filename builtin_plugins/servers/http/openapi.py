"""`/openapi.json`: the description of all routes, in OpenAPI 3.1."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from starlette.routing import Route

from builtin_plugins.servers.http.errors import Form

PATH: Final = "/openapi.json"
_PARAMETER: Final = re.compile(r"{(\w+)(?::\w+)?}")
_ERROR: Final[dict[str, Any]] = {
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
_PLAIN: Final = _ERROR["properties"]["error"]
"""Error schema of protocols without an `error` field."""
_OTHER: Final = "Refused, or failed; `param` names the field."
_REFUSALS: Final[Mapping[int, str]] = {
    400: "The request is invalid; `param` names the field.",
    401: "No valid API key.",
    404: "The model, path or id does not exist.",
    408: "The request did not arrive in time.",
    413: "The body is larger than --max-request-bytes.",
    415: "The content type is not JSON.",
    429: "The client has too many bytes in flight; `Retry-After` says when to retry.",
    500: "The request failed inside the server.",
    503: "Overloaded, starting, draining, or the engine has ended.",
    504: "The request took longer than --request-timeout.",
}
_WITH_BODY: Final = frozenset({400, 404, 408, 413, 415, 429, 500, 503, 504})


def document(
    routes: Sequence[Any],
    bodies: Mapping[str, Mapping[str, Any]],
    queries: Mapping[str, Mapping[str, Mapping[str, Any]]],
    public: Collection[str],
    forms: Mapping[str, Form],
    *,
    keyed: bool,
    root_path: str = "",
) -> dict[str, Any]:
    """Return the description of all routes; FastAPI's routes describe themselves.

    `bodies` are the schemas of other routes' bodies by path, `queries` those of query parameters by
    route and name. `forms` are forms of errors other than OpenAI's, by path. With `keyed`, all
    paths except the `public` ones need an API key. `root_path` is the path under which a proxy
    serves the routes.
    """
    found: dict[str, Any] = get_openapi(
        title="core", version=metadata.version("core"), routes=routes
    )
    if root_path:
        found["servers"] = [{"url": root_path}]
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    schemas |= {"Error": _ERROR, "PlainError": _PLAIN}
    bodies = _with_unique_titles(bodies)
    for route in routes:
        if type(route) is Route and route.include_in_schema:
            path = found["paths"].setdefault(_PARAMETER.sub(r"{\1}", route.path), {})
            refusals = {401} if keyed and route.path not in public else set[int]()
            error = _error_schema(forms.get(route.path))
            path |= _operations(route, bodies.get(route.path), queries, refusals, error)
    schemas |= {schema["title"]: schema for schema in bodies.values()}
    if keyed:
        header = {"type": "apiKey", "in": "header", "name": "x-api-key"}
        found["components"]["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer"},
            "header": header,
        }
        found["security"] = [{"key": []}, {"header": []}]
        for path in public & found["paths"].keys():
            for operation in found["paths"][path].values():
                operation["security"] = []
    return found


def _with_unique_titles(bodies: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return schemas by path, with different titles for different schemas of equal titles."""
    first = {schema["title"]: schema for schema in reversed(list(bodies.values()))}
    return {
        path: schema
        if schema == first[schema["title"]]
        else {**schema, "title": "".join(re.findall(r"\w+", path))}
        for path, schema in bodies.items()
    }


def _operations(
    route: Route,
    body: Mapping[str, Any] | None,
    queries: Mapping[str, Mapping[str, Any]],
    refusals: set[int],
    error: Mapping[str, Any],
) -> Iterable[tuple[str, Any]]:
    doc = (getattr(route.endpoint, "__doc__", None) or "").strip()
    inside = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    refusals = refusals | (_WITH_BODY if body is not None else set()) | ({404} if inside else set())
    for method in sorted((route.methods or set()) - {"HEAD"}):
        query = queries.get(f"{method} {route.path}", {})
        parameters = inside + [
            {"name": name, "in": "query", "schema": schema} for name, schema in query.items()
        ]
        errors = _refusals(refusals | ({400} if query else set()), error)
        operation: dict[str, Any] = {
            "operationId": "_".join([method.lower(), *re.findall(r"\w+", route.path)]),
            "responses": {"200": _done(body), **errors, "default": _refusal(_OTHER, error)},
        }
        if doc:
            operation["summary"] = doc.splitlines()[0]
        if parameters:
            operation["parameters"] = parameters
        if body is not None:
            schema = {"$ref": f"#/components/schemas/{body['title']}"}
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": schema}},
            }
        yield method.lower(), operation


def _done(body: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the success response; it may be an event stream if the body has `stream`."""
    if body is None or "stream" not in body["properties"]:
        return {"description": "Done."}
    return {"description": "Done.", "content": {"application/json": {}, "text/event-stream": {}}}


def _error_schema(form: Form | None) -> dict[str, Any]:
    """Return the schema of a form of errors, found with an example."""
    example = {"message": "", "type": "", "param": None, "code": None}
    answer = {"error": example} if form is None else form(400, example)
    for name, error in (("Error", answer.get("error")), ("PlainError", answer)):
        if isinstance(error, Mapping) and example.keys() <= error.keys():
            return {"$ref": f"#/components/schemas/{name}"}
    return {"type": "object"}


def _refusals(statuses: Iterable[int], error: Mapping[str, Any]) -> dict[str, Any]:
    return {str(status): _refusal(_REFUSALS[status], error) for status in sorted(statuses)}


def _refusal(description: str, error: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": error}}}
