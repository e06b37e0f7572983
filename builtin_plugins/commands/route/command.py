"""`engine route`: checks the flags and serves the router."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from core.api import ConfigError

if TYPE_CHECKING:
    import argparse

    import uvicorn

    from core.api import CommandContext


class Route:
    """Serves OpenAI's API on top of running engines."""

    help = "Route requests to running servers, with separate prefill and decode engines."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the engines and the limits."""
        _add_addresses(parser)
        _add_limits(parser)

    def run(self, context: CommandContext) -> int:
        """Serve until a signal."""
        # lazy: the list of commands must be fast
        from builtin_plugins.commands.route.app import Router, Rules
        from builtin_plugins.commands.route.engines import Engines
        from builtin_plugins.commands.route.proxy import Address

        args = context.args
        if not args.decode:
            raise ConfigError(
                "--decode is missing; set at least one, such as --decode http://127.0.0.1:8001."
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
        prefill = Engines([Address.parse(url, "--prefill") for url in args.prefill])
        decode = Engines([Address.parse(url, "--decode") for url in args.decode])
        listener = listen(args.host, args.port)
        rules = Rules(args.retries, args.health_interval, args.timeout, args.max_request_bytes)
        return asyncio.run(_serve(Router(prefill, decode, rules), listener))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `ConfigError` naming the flags."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port} cannot listen: {error}. Set another port."
        ) from error


def server_of(app: Any) -> uvicorn.Server:
    """Return the HTTP server of the application."""
    import uvicorn  # lazy: a web framework

    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,  # use the engine's log handlers
            log_level="warning",
            lifespan="on",
            timeout_keep_alive=75,
            http="h11",
            server_header=False,  # forwarded from the engine
            date_header=False,
        )
    )


async def _serve(app: Any, listener: socket.socket) -> int:
    server = server_of(app)
    host, port = listener.getsockname()[:2]
    print(f"Routing on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
    await server.serve(sockets=[listener])
    return 0 if server.started else 1


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    """Add the addresses of the engines and of the router."""
    add = parser.add_argument
    add(
        "--prefill",
        metavar="URL",
        action="append",
        default=[],
        help="URL of a prefill engine; may be repeated",
    )
    add(
        "--decode",
        metavar="URL",
        action="append",
        default=[],
        help="URL of a decode engine; may be repeated",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add(
        "--port",
        type=int,
        default=8000,
        help="port to listen on; 0 takes a free one (default: %(default)s)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the limits of a request."""
    add = parser.add_argument
    add(
        "--retries",
        type=int,
        default=3,
        help="retries of a failed request (default: %(default)s)",
    )
    add(
        "--health-interval",
        type=float,
        default=2.0,
        metavar="S",
        help="seconds between health checks (default: 2)",
    )
    add(
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds to wait for the next byte of an engine (default: 600)",
    )
    add(
        "--max-request-bytes",
        type=int,
        default=10 << 20,
        metavar="N",
        help="largest request body (default: 10 MiB)",
    )
