"""`engine run-batch`: answers a batch file through the server's routes, in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from builtin_plugins.commands.run_batch.files import opened, written
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

    def run(self, context: CommandContext) -> int:
        """Answer every line; failures are written to the results and counted."""
        args = context.args
        config = context.config
        registry = context.registry
        if os.path.realpath(args.input_file) == os.path.realpath(args.output_file):
            raise ConfigError(f"--output-file {args.output_file} is the input file; give another.")
        with (
            opened(args.input_file) as requests,
            written(args.output_file, args.output_tmp_dir) as results,
        ):
            # lazy: torch is slow to import
            from core import AsyncLLM

            engine = AsyncLLM.from_config(config, registry)
            try:
                tally = asyncio.run(_answer(_application(engine, registry), requests, results))
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


async def _answer(app: Any, requests: Iterable[bytes], results: BinaryIO) -> Tally:
    with tqdm(desc="Running batch", unit="req", mininterval=1) as progress:

        def write(line: bytes) -> None:
            results.write(line + b"\n")
            progress.update()

        return await Batch(app).run(requests, write)
