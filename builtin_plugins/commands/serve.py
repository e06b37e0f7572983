"""`engine serve`: starts the engine and the server that carries every loaded route group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.api import Entry, hookimpl

if TYPE_CHECKING:
    import argparse


@hookimpl
def engine_commands() -> list[Entry]:
    """Give the command."""
    return [Entry("serve", Serve, "serve a model over HTTP")]


class Serve:
    """Serves a model until told to stop; host, port and the like are options of the server plugin."""

    help = "Serve a model over HTTP."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model."""
        parser.add_argument("model", nargs="?", help="local folder or hub id; without one, a small demo model")

    def run(self, context: Any) -> int:
        """Serve; returns when the server has stopped."""
        from core import AsyncLLM  # lazy: slow to import

        registry = context.registry
        server, routes = registry.choose("servers"), registry.entries("routes")
        parts = (server, *routes)
        makers: list[Any] = []

        def load_parts() -> None:
            makers.extend(registry.load(registered) for registered in parts)
            if hasattr(makers[0], "check"):
                with registry.blame(server):
                    makers[0].check(context.config)

        engine = AsyncLLM.from_config(context.config, registry, meanwhile=load_parts)
        try:
            (make_server, *make_routes), groups = makers, {}
            for registered, make in zip(routes, make_routes, strict=True):
                with registry.blame(registered):
                    groups[registered.entry.name] = make(engine, engine.config)
            with registry.blame(server):
                status: int = make_server(engine, engine.config, groups).run()
        finally:
            engine.shutdown()
        return status
