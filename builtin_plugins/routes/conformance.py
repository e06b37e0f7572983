"""What every HTTP route group must keep.

Knows no web framework: a route has a path and may have methods.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builtin_plugins.servers.api import RouteGroup
from core.testing.echo_engine import EchoEngine

if TYPE_CHECKING:
    from core.testing.conformance import Subject

CONTRACT = RouteGroup


def _group(subject: Subject) -> Any:
    config = subject.config
    switch = getattr(subject.target, "switch", None)
    if switch is not None:
        config = replace(config, options={**config.options, switch: True})
    return subject.target(EchoEngine(config), config)


def check_gives_routes_with_absolute_paths(subject: Subject) -> None:
    """`routes()` returns at least one route, each with a path from the root; a group that is
    `around` others, or that gives reasons of missing paths, may have none.
    """
    group = _group(subject)
    routes = list(group.routes())
    is_empty = hasattr(group, "around") or hasattr(group, "missing_paths")
    assert routes or is_empty, (
        f"{subject.entry.name}: routes() is empty; return Starlette or FastAPI routes."
    )
    for route in routes:
        path = getattr(route, "path", None)
        assert isinstance(path, str), (
            f"{subject.entry.name}: {route!r} has no path; return Starlette or FastAPI routes."
        )
        assert path.startswith("/"), f"{subject.entry.name}: path {path!r} must start with '/'."


def check_serves_no_path_twice(subject: Subject) -> None:
    """No two routes of the group have the same path and method."""
    seen: set[tuple[str, str]] = set()
    for route in _group(subject).routes():
        for method in getattr(route, "methods", None) or {"*"}:
            key = (method, route.path)
            assert key not in seen, (
                f"{subject.entry.name}: {method} {route.path} is there twice; the second never "
                "runs."
            )
            seen.add(key)


def check_routes_can_be_listed_again(subject: Subject) -> None:
    """`routes()` has no side effect: a second call gives the same paths."""
    group = _group(subject)
    first, second = ([route.path for route in group.routes()] for _ in range(2))
    assert first == second, f"{subject.entry.name}: routes() gave {first}, then {second}."


def check_public_paths_are_its_own(subject: Subject) -> None:
    """Paths served without an API key are paths of this group."""
    group = _group(subject)
    own = {route.path for route in group.routes()}
    foreign = set(getattr(group, "public_paths", ())) - own
    assert not foreign, (
        f"{subject.entry.name}: public_paths names {sorted(foreign)}, which are not its routes."
    )


def check_refusals_keep_what_was_wrong(subject: Subject) -> None:
    """Where errors have a form of the group's own, the message is in it."""
    group = _group(subject)
    if hasattr(group, "refusal"):
        error = {
            "message": "n: is too large.",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
        }
        body = json.dumps(group.refusal(400, error))
        assert error["message"] in body, (
            f"{subject.entry.name}: refusal() leaves out the message: {body}"
        )
