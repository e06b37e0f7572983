"""ASGI application with the routes of all groups, wrapped in one guard."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from builtin_plugins.servers.contract import RouteGroup
from builtin_plugins.servers.http.guard import Guard
from builtin_plugins.servers.http.limits import Limits
from builtin_plugins.servers.http.middleware import wrap
from builtin_plugins.servers.http.openapi import PATH, document
from core.api import ConfigError
from core.api.telemetry import HttpStats


class EngineApp(FastAPI):
    """FastAPI's routing, with a `Guard` instead of its error and middleware stack.

    Optional attributes of route groups: `public_paths` without an API key, `refusal` as form of
    errors, `around` as a wrapper of the application, and `missing_paths` as reasons of a 404.
    """

    def __init__(
        self,
        groups: Mapping[str, RouteGroup],
        options: Mapping[str, Any],
        measure: Callable[[HttpStats], None] = lambda stats: None,
    ) -> None:
        self._options = options
        self._public = {
            path for group in groups.values() for path in getattr(group, "public_paths", ())
        }
        self.quiet_paths = frozenset(
            path for group in groups.values() for path in getattr(group, "quiet_paths", ())
        )
        """Paths that machines poll every few seconds; successful requests are not logged."""
        routes = collect_routes(groups)
        if not options.get("disable_fastapi_docs"):
            routes.append(Route(PATH, self._describe, methods=["GET"], include_in_schema=False))
        self.template_of = Templates(routes)
        """Returns the route template of a path."""
        self._groups = groups
        super().__init__(
            routes=routes,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            lifespan=EngineApp._started,
        )
        self.root_path = options.get("root_path") or ""  # deprecated as an argument of FastAPI
        self.limits = Limits.from_options(options)
        self._error_forms = {
            route.path: group.refusal
            for group in groups.values()
            if hasattr(group, "refusal")
            for route in group.routes()
        }
        self.guard = Guard(
            AsyncExitStackMiddleware(self.router),
            self.limits,
            api_keys=_keys(options.get("api_key") or ()),
            public_paths=self._public,
            tenant_header=options.get("tenant_header") or "",
            template_of=self.template_of,
            error_forms=self._error_forms,
            methods=_methods(routes),
            request_id_headers=bool(options.get("enable_request_id_headers")),
            logs_stacks=bool(options.get("log_error_stack")),
            measure=measure,
            missing_paths={
                path: reason
                for group in groups.values()
                for path, reason in getattr(group, "missing_paths", {}).items()
            },
        )

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[None]:
        """Let route groups prepare themselves in the event loop, before the first request."""
        for group in self._groups.values():
            if hasattr(group, "started"):
                await group.started()
        yield

    async def _describe(self, request: Request) -> JSONResponse:
        """Return the description of all routes."""
        bodies: dict[str, Any] = {}
        queries: dict[str, Any] = {}
        for group in self._groups.values():
            bodies |= group.bodies() if hasattr(group, "bodies") else {}
            queries |= getattr(group, "queries", {})
        keyed = bool(self._options.get("api_key"))
        root_path = self.root_path
        forms = self._error_forms
        return JSONResponse(
            document(
                self.routes, bodies, queries, self._public, forms, keyed=keyed, root_path=root_path
            )
        )

    def build_middleware_stack(self) -> ASGIApp:
        """Return the guard, wrapped by route groups, `--middleware`, and CORS with origins."""
        options = self._options
        app: ASGIApp = self.guard
        for group in self._groups.values():
            app = group.around(app) if hasattr(group, "around") else app
        app = wrap(app, options.get("middleware") or ())
        origins = options.get("allowed_origins") or []
        if not origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=options.get("allowed_methods") or ["*"],
            allow_headers=options.get("allowed_headers") or ["*"],
            allow_credentials=bool(options.get("allow_credentials")),
        )


class Templates:
    """Maps paths to route templates, a small fixed set."""

    def __init__(self, routes: Iterable[Any]) -> None:
        self._same: dict[str, str] = {
            route.path: route.path for route in routes if "{" not in getattr(route, "path", "{")
        }
        self._others: list[tuple[re.Pattern[str], str]] = [
            (route.path_regex, route.path) for route in routes if hasattr(route, "path_regex")
        ]

    def __call__(self, path: str) -> str:
        """Return the template of a path; empty without a route."""
        found = self._same.get(path)
        if found is not None:
            return found
        return next((template for regex, template in self._others if regex.match(path)), "")


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


def _methods(routes: Iterable[Any]) -> dict[str, str]:
    """Return the methods of each path, over all its routes, for the header `Allow`."""
    found: dict[str, set[str]] = {}
    for route in routes:
        found.setdefault(getattr(route, "path", ""), set()).update(
            getattr(route, "methods", None) or ()
        )
    return {path: ", ".join(sorted(methods)) for path, methods in found.items()}


def _keys(given: Iterable[str]) -> list[str]:
    keys = [given] if isinstance(given, str) else list(given)
    if any(not key.strip() for key in keys):
        raise ConfigError(
            "--api-key is empty; give a key, or remove the option to serve without keys."
        )
    return keys
