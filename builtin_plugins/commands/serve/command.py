"""`engine serve`: starts the engine and the server that carries every loaded route group, watched
by a small parent.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from builtin_plugins.commands.serve.child import Handle
from builtin_plugins.commands.serve.memory import memory_limit
from builtin_plugins.commands.serve.parent import Parent, can_watch
from builtin_plugins.commands.serve.streams import mend_streams
from core.api import EngineError

if TYPE_CHECKING:
    import argparse

log = logging.getLogger(__name__)


class Serve:
    """Serves a model until told to stop; host, port and the like are options of the server plugin."""

    help = "Serve a model over HTTP."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model."""
        parser.add_argument(
            "model", nargs="?", help="local folder or hub id; without one, a small demo model"
        )

    def run(self, context: Any) -> int:
        """Serve; returns when the server has stopped: in the parent and in each process that has
        served.
        """
        mend_streams()
        config = context.config
        registry = context.registry
        limit_bytes = memory_limit(config.options.get("api_memory_limit"))
        if config.service.disable_frontend_multiprocessing:
            return self._serve(config, registry, None)
        if not can_watch():
            log.warning(
                "nobody watches the API process: the system has no pidfd_open, or a plugin has "
                "started a thread"
            )
            return self._serve(config, registry, None)
        outcome = Parent(config, limit_bytes).run()
        if not isinstance(outcome, Handle):
            return outcome
        try:
            status = self._serve(config, registry, outcome)
        except (EngineError, KeyboardInterrupt):
            if not outcome.restarts:
                outcome.leave()
            raise
        outcome.leave()
        return status

    def _serve(self, config: Any, registry: Any, parent: Handle | None) -> int:
        from core import AsyncLLM  # lazy: slow to import

        server = registry.choose("servers")
        routes = registry.entries("routes")
        registry.shared("parent", lambda: parent)
        parts = (server, *routes)
        makers: list[Any] = []

        def load_parts() -> None:
            makers.extend(registry.load(registered) for registered in parts)
            if hasattr(makers[0], "check") and (parent is None or not parent.restarts):
                with registry.blame(server):
                    makers[0].check(config)

        engine = AsyncLLM.from_config(config, registry, meanwhile=load_parts)
        try:
            (make_server, *make_routes), groups = makers, {}
            for registered, make in zip(routes, make_routes, strict=True):
                with registry.blame(registered):
                    groups[registered.entry.name] = make(engine, engine.config)
            with registry.blame(server):
                made = make_server(engine, engine.config, groups)
                if hasattr(made, "parent"):
                    made.parent = parent
                elif parent is not None:
                    parent.serving()
                status: int = made.run()
        finally:
            engine.shutdown()
        return status
