"""The ASGI application: every route group's routes behind one guard. Knows no socket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from builtin_plugins.servers.http.guard import Guard
from core.api import ConfigError, RouteGroup


class EngineApp(FastAPI):
    """FastAPI's routing with our guard in place of its error and middleware stack.

    A route group may have `public_paths`: those of its paths that need no API key.
    """

    def __init__(self, groups: Mapping[str, RouteGroup], options: Mapping[str, Any]) -> None:
        self._options = options
        self._public = {path for group in groups.values() for path in getattr(group, "public_paths", ())}
        routes = collect_routes(groups)
        super().__init__(
            routes=routes, openapi_url=None, docs_url=None, redoc_url=None, root_path=options.get("root_path") or ""
        )
        self.guard = self._make_guard(AsyncExitStackMiddleware(self.router))

    def build_middleware_stack(self) -> ASGIApp:
        """Return the guard, behind CORS where origins are allowed."""
        origins = self._options.get("allowed_origins") or []
        if not origins:
            return self.guard
        return CORSMiddleware(self.guard, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])

    def _make_guard(self, app: ASGIApp) -> Guard:
        options = self._options
        most = options.get("max_request_bytes", 10 * 1024 * 1024)
        if most < 1:
            raise ConfigError(f"--max-request-bytes {most} would refuse every request; give at least 1.")
        return Guard(
            app,
            api_keys=_keys(options.get("api_key") or ()),
            public_paths=self._public,
            max_request_bytes=most,
            request_id_headers=bool(options.get("enable_request_id_headers")),
        )


def collect_routes(groups: Mapping[str, RouteGroup]) -> list[Any]:
    """Return all routes. Raises `ConfigError` when two serve the same path, naming both groups."""
    routes: list[Any] = []
    owners: dict[tuple[str, str], str] = {}
    for name, group in groups.items():
        for route in group.routes():
            for key in _served(route):
                other = owners.setdefault(key, name)
                if other != name:
                    method, path = key
                    raise ConfigError(
                        f"route groups {other!r} and {name!r} both serve {method} {path}; "
                        "block one of their plugins with --plugins no:NAME."
                    )
            routes.append(route)
    return routes


def _served(route: Any) -> Sequence[tuple[str, str]]:
    path = getattr(route, "path", "")
    return [(method, path) for method in sorted(getattr(route, "methods", None) or {"*"})]


def _keys(given: Iterable[str]) -> list[str]:
    keys = [given] if isinstance(given, str) else list(given)
    if any(not key.strip() for key in keys):
        raise ConfigError("--api-key is empty; give a key, or leave the option out to serve without keys.")
    return keys
