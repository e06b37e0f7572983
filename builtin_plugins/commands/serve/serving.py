"""Makes the engine's frontend, the route groups and the server, and serves with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from builtin_plugins.clients.api import rare_collections
from core.api import ConfigError, Registry


def serve(
    config: Any,
    registry: Registry,
    parent: Any,
    frontend: Any,
    *,
    checks: bool,
    prepare: Callable[[Any], None] = lambda engine: None,
) -> int:
    """Serve until the server stops; return its exit status.

    `frontend` is `AsyncLLM` or a class of it; `prepare` is called with it before routes are made.
    `checks`: whether to check the server's settings while the engine starts.
    """
    server = registry.choose("servers")
    routes = registry.entries("routes")
    parts = (server, *routes)
    makers: list[Any] = []

    def load_parts() -> None:
        makers.extend(registry.load(registered) for registered in parts)
        if checks and hasattr(makers[0], "check"):
            with registry.blame(server):
                makers[0].check(config)

        _check_one_process(config, zip(routes, makers[1:], strict=True))

    with rare_collections():
        engine = frontend.from_config(config, registry, meanwhile=load_parts)
    try:
        prepare(engine)
        (make_server, *make_routes) = makers
        groups = {}
        for registered, make in zip(routes, make_routes, strict=True):
            with registry.blame(registered):
                groups[registered.entry.name] = make(engine, engine.config)
        with registry.blame(server):
            made = make_server(engine, engine.config, groups)
            if hasattr(made, "parent"):
                made.parent = parent
            elif parent is not None:
                parent.report_serving()
            status: int = made.run()
    finally:
        engine.shutdown()
    return status


def _check_one_process(config: Any, groups: Iterable[tuple[Any, Any]]) -> None:
    """Raise `ConfigError` for named plugins with routes that several API servers cannot serve."""
    count = config.options.get("api_server_count") or 1
    for registered, make in groups:
        reason = getattr(make, "one_process", "")
        if reason and count > 1 and registered.plugin.named:
            raise ConfigError(
                f"--api-server-count: got {count}; expected 1 with the routes "
                f"{registered.entry.name!r}: {reason}. Remove one of them."
            )
