"""`engine run-batch`: answers a batch file through the server's routes, in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from builtin_plugins.commands.run_batch.files import bounded_lines, opened, written
from builtin_plugins.commands.run_batch.lines import Batch, Tally
from core.api import ConfigError

if TYPE_CHECKING:
    import argparse
    from typing import BinaryIO

    from core import AsyncLLM
    from core.api import CommandContext
    from core.api.plugins import LoadedRegistry


class RunBatch:
    """Answers the requests of a batch file in order."""

    help = "Answer the requests of a batch file in OpenAI's format."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model and the files."""
        parser.add_argument(
            "model", nargs="?", help="local folder or hub id; without one, a small demo model"
        )
        parser.add_argument(
            "-i",
            "--input-file",
            required=True,
            metavar="FILE",
            help="JSON lines file: path or http(s) URL",
        )
        parser.add_argument(
            "-o",
            "--output-file",
            required=True,
            metavar="FILE",
            help="path, or http(s) URL for a PUT of the results",
        )
        parser.add_argument(
            "--output-tmp-dir", metavar="DIR", help="folder for results before the upload to a URL"
        )
        parser.add_argument(
            "--enable-metrics",
            action="store_true",
            help="serve /metrics meanwhile, at --host and --port",
        )
        parser.add_argument("--url", metavar="HOST", help="vLLM's name of --host")

    def run(self, context: CommandContext) -> int:
        """Answer every line; failures are written to the results and counted."""
        args = context.args
        config = context.config
        registry = context.registry
        if os.path.realpath(args.input_file) == os.path.realpath(args.output_file):
            raise ConfigError(f"--output-file {args.output_file} is the input file; give another.")
        address = _metrics_address(context)
        with (
            opened(args.input_file) as requests,
            written(args.output_file, args.output_tmp_dir) as results,
        ):
            # lazy: torch is slow to import
            from core import AsyncLLM

            engine = AsyncLLM.from_config(config, registry)
            try:
                app = _application(engine, registry)
                lines = bounded_lines(requests, args.input_file)
                tally = asyncio.run(_answer(app, lines, results, address))
            finally:
                engine.shutdown()
        print(f"answered {tally.answered}, failed {tally.failed}")
        return 0


def _application(engine: AsyncLLM, registry: LoadedRegistry) -> Any:
    """Return the server's ASGI application with all routes, without an API key."""
    config = replace(engine.config, options={**engine.config.options, "api_key": []})
    groups = {}
    for registered in registry.entries("routes"):
        with registry.blame(registered):
            groups[registered.entry.name] = registry.load(registered)(engine, config)
    server = registry.choose("servers")
    with registry.blame(server):
        app = getattr(registry.load(server)(engine, config, groups), "app", None)
    if app is None:
        raise ConfigError(f"the server {server.entry.name!r} has no ASGI application.")
    return app


def _metrics_address(context: CommandContext) -> tuple[str, int] | None:
    """Return host and port of the metrics; None without them.

    Raises `ConfigError` for an address without metrics.
    """
    args = context.args
    if not args.enable_metrics:
        given = [name for name in ("host", "port") if _is_flag(context, name)]
        for name in ["url", *given] if args.url else given:
            raise ConfigError(
                f"--{name}: got an address; it has no effect without --enable-metrics. Add that, "
                f"or remove --{name}."
            )
        return None
    if context.config.observability.disable_log_stats:
        raise ConfigError(
            "--enable-metrics: got --disable-log-stats next to it; expected one of them. Remove "
            "the other."
        )
    options = context.config.options
    return args.url or options.get("host") or "127.0.0.1", options.get("port", 8000)


def _is_flag(context: CommandContext, name: str) -> bool:
    return context.provenance.origin_of(name).startswith("flag")


async def _answer(
    app: Any, requests: Iterable[bytes], results: BinaryIO, address: tuple[str, int] | None
) -> Tally:
    async with AsyncExitStack() as stack:
        if address is not None:
            # lazy: only metrics need a server
            from builtin_plugins.commands.run_batch.metrics import metrics_server

            url = await stack.enter_async_context(metrics_server(app, *address))
            print(f"metrics at {url}", flush=True)
        progress = stack.enter_context(tqdm(desc="Running batch", unit="req", mininterval=1))

        def write(line: bytes) -> None:
            results.write(line + b"\n")
            progress.update()

        return await Batch(app).run(requests, write)
