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
        parser.add_argument("model", nargs="?", help="local folder, hub id, or `scripted:`")

    def run(self, context: Any) -> int:
        """Serve; returns when the server has stopped."""
        registry = context.registry
        server = registry.choose("servers")
        parts = [(registered, registry.load(registered)) for registered in (server, *registry.entries("routes"))]
        (_, make_server), *groups = parts
        if hasattr(make_server, "check"):
            with registry.blame(server):
                make_server.check(context.config)
        from core import AsyncLLM  # lazy: torch is slow to import, and what is missing is said before

        engine = AsyncLLM.from_config(context.config, registry)
        try:
            made = {}
            for registered, make in groups:
                with registry.blame(registered):
                    made[registered.entry.name] = make(engine, engine.config)
            with registry.blame(server):
                status: int = make_server(engine, engine.config, made).run()
        finally:
            engine.shutdown()
        return status
