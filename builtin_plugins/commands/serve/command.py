"""`engine serve`: starts the engine and the HTTP server under a small parent process."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from builtin_plugins.commands.serve.model_defaults import with_model_defaults
from builtin_plugins.commands.serve.models.settings import read_models
from builtin_plugins.commands.serve.parent import Parent, can_supervise
from builtin_plugins.commands.serve.parent_handle import ParentHandle
from builtin_plugins.commands.serve.rank_servers import MULTI_PORT, RankServers
from builtin_plugins.commands.serve.serving import serve
from builtin_plugins.commands.serve.shared_state import num_api_servers
from builtin_plugins.commands.serve.system import memory_limit, reopen_standard_streams
from builtin_plugins.launchers.api import num_nodes
from core.api import ConfigError, EngineError

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext
    from core.api.plugins import LoadedRegistry

log = logging.getLogger(__name__)


class Serve:
    """Serves models; host, port and others are options of the server plugin."""

    help = (
        "Serve a model, or several on one port, over HTTP. Example: `engine serve Qwen/Qwen3-0.6B "
        "--port 8000`. `engine serve --help=TEXT` lists only the flags with a text."
    )
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the models."""
        parser.add_argument(
            "model", nargs="?", help="local folder or hub id; without one, a small demo model"
        )
        parser.add_argument(
            "more_models",
            nargs="*",
            metavar="MODEL",
            help="further models, loaded on demand and chosen by `model` in requests",
        )

    def run(self, context: CommandContext) -> int:
        """Serve until the server stops; returns in the parent and in each API process."""
        reopen_standard_streams()
        registry = context.registry
        pool = read_models(context)
        config = context.config if pool else with_model_defaults(context)
        if pool is not None and num_nodes(config) > 1:
            raise ConfigError(
                f"--nnodes: got {num_nodes(config)}; expected 1 with several models. Remove one of "
                "them."
            )
        if config.options.get("headless"):
            from builtin_plugins.launchers.api import run_node  # lazy: needs ZeroMQ

            return run_node(config, registry, context.provenance.origins)
        if config.options.get(MULTI_PORT):
            found = RankServers(config).run()
            if isinstance(found, int):
                return found
            config = found
        limit_bytes = memory_limit(config.options.get("api_memory_limit"))
        num_servers = num_api_servers(config)
        start = self._serve
        if pool is not None:
            if num_servers > 1:
                raise ConfigError(
                    f"--api-server-count: got {num_servers}; expected 1 with several models. "
                    "Remove it, or set it for a model in --models-file."
                )
            from builtin_plugins.commands.serve.models.server import (  # lazy: a web framework
                make_folder,
                serve_models,
            )

            start = partial(serve_models, pool, make_folder())
        if config.service.disable_frontend_multiprocessing:
            return start(config, registry, None)
        if not can_supervise():
            log.warning(
                "the API process is not supervised: the system has no pidfd_open, or a plugin has "
                "started a thread"
            )
            return start(config, registry, None)
        outcome = Parent(config, limit_bytes).run()
        if not isinstance(outcome, ParentHandle):
            return outcome
        try:
            status = start(config, registry, outcome)
        except (EngineError, KeyboardInterrupt):
            if not outcome.restarts:
                outcome.leave(1)
            raise
        outcome.leave(status)
        return status

    def _serve(self, config: Any, registry: LoadedRegistry, parent: ParentHandle | None) -> int:
        registry.shared("parent", lambda: parent)
        if num_api_servers(config) > 1:
            from builtin_plugins.commands.serve.api_servers import ApiServers  # lazy: needs ZeroMQ

            limit_bytes = memory_limit(config.options.get("api_memory_limit"))
            return ApiServers(config, registry, parent, limit_bytes).run()
        from core import AsyncLLM  # lazy: slow to import

        is_first = parent is None or not parent.restarts
        return serve(config, registry, parent, AsyncLLM, checks=is_first)
