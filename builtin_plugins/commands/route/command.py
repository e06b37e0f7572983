"""The command: reads what it is to share out among whom, and serves."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from core.api import ConfigError

if TYPE_CHECKING:
    import argparse

    import uvicorn


class Route:
    """Serves OpenAI's API for engines that run elsewhere."""

    help = "Share out requests among running servers: prompts to some, what follows to others."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the engines and how they are asked."""
        add = parser.add_argument
        add(
            "--prefill",
            metavar="URL",
            action="append",
            default=[],
            help="an engine that computes prompts; may be repeated",
        )
        add(
            "--decode",
            metavar="URL",
            action="append",
            default=[],
            help="one that goes on with them; may be repeated",
        )
        add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        add(
            "--port",
            type=int,
            default=8000,
            help="port to listen on; 0 takes a free one (default: %(default)s)",
        )
        add(
            "--retries",
            type=int,
            default=3,
            help="other tries of what an engine did not answer (default: %(default)s)",
        )
        add(
            "--health-interval",
            type=float,
            default=2.0,
            metavar="S",
            help="between two looks at an engine (default: 2)",
        )
        add(
            "--timeout",
            type=float,
            default=600.0,
            metavar="S",
            help="for the next byte of an engine (default: 600)",
        )
        add(
            "--max-request-bytes",
            type=int,
            default=10 << 20,
            metavar="N",
            help="largest request body (default: 10 MiB)",
        )

    def run(self, context: Any) -> int:
        """Serve until a signal ends it."""
        from builtin_plugins.commands.route.app import (
            Router,
            Rules,
        )  # lazy: the list of commands stays quick
        from builtin_plugins.commands.route.engines import Engines
        from builtin_plugins.commands.route.upstream import Address

        args = context.args
        if not args.decode:
            raise ConfigError(
                "--decode is missing: name one engine at least, like --decode "
                "http://127.0.0.1:8001."
            )
        for name in ("health_interval", "timeout", "max_request_bytes"):
            if not 0 < getattr(args, name) < float("inf"):
                raise ConfigError(
                    f"--{name.replace('_', '-')} must be more than 0, not {getattr(args, name)}."
                )
        if not 0 <= args.port < 1 << 16:
            raise ConfigError(f"--port must be 0 to 65535, not {args.port}.")
        if args.retries < 0:
            raise ConfigError(f"--retries must be 0 or more, not {args.retries}.")
        prefill = Engines([Address.of(url, "--prefill") for url in args.prefill])
        decode = Engines([Address.of(url, "--decode") for url in args.decode])
        listener = listen(args.host, args.port)
        rules = Rules(args.retries, args.health_interval, args.timeout, args.max_request_bytes)
        return asyncio.run(_serve(Router(prefill, decode, rules), listener))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises `ConfigError` naming the flags."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port} cannot be listened on: {error}. Choose another port."
        ) from error


def server_of(app: Any) -> uvicorn.Server:
    """Return what serves the application."""
    import uvicorn  # lazy: a web framework

    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,  # its lines go where ours go
            log_level="warning",
            lifespan="on",
            timeout_keep_alive=75,
            http="h11",
            server_header=False,  # these two are passed on as the engine says them
            date_header=False,
        )
    )


async def _serve(app: Any, listener: socket.socket) -> int:
    server = server_of(app)
    host, port = listener.getsockname()[:2]
    print(f"Routing on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
    await server.serve(sockets=[listener])
    return 0 if server.started else 1
