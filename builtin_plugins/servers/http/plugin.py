"""The HTTP server of `engine serve`: uvicorn with API keys, limits and graceful shutdown."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from core.api import EngineConfig, Entry, Option, Range, hookimpl

YEAR_S: Final = 366 * 24 * 3600.0
Seconds = Annotated[float, Range(0.001, YEAR_S)]
EventLoop = Literal["auto", "asyncio", "uvloop"]
LogLevel = Literal["critical", "error", "warning", "info", "debug", "trace"]


@hookimpl
def engine_servers() -> list[Entry]:
    target = "builtin_plugins.servers.http.server:HttpServer"
    return [Entry("http", target, "HTTP over uvicorn", requires=("fastapi", "uvicorn"))]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    defaults = {option.name: option.default for option in engine_options()}
    if any(config.options.get(name) != default for name, default in defaults.items()):
        from builtin_plugins.servers.http.server import HttpServer  # lazy: a web framework

        HttpServer.check_settings(config)


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "host",
            str,
            "127.0.0.1",
            "Address to listen on; 0.0.0.0 for all networks of the machine.",
        ),
        Option(
            "port", Annotated[int, Range(0, 65535)], 8000, "Port to listen on; 0 takes a free one."
        ),
        Option("uds", str | None, None, "Unix socket to listen on instead of a port."),
        Option(
            "event_loop",
            EventLoop,
            "auto",
            "Event loop of the server; auto: uvloop if it is installed.",
        ),
        Option("root_path", str, "", "Path under which a proxy serves the server."),
        *_access(),
        *_request_limits(),
        *_connection_limits(),
        Option(
            "strict_fields",
            bool,
            False,
            "Refuse requests with unknown fields instead of naming them in a header.",
        ),
        Option(
            "enable_request_id_headers",
            bool,
            False,
            "Answer with X-Request-Id, the client's or a new one.",
        ),
        Option("uvicorn_log_level", LogLevel, "info", "Lowest level of uvicorn's log."),
        Option("disable_uvicorn_access_log", bool, False, "No log line per HTTP request."),
        Option(
            "disable_access_log_for_endpoints",
            str | None,
            None,
            "Paths without a log line per HTTP request, separated by commas: /health,/metrics.",
        ),
        Option(
            "log_config_file",
            str | None,
            None,
            "JSON file with a logging configuration (Python's dictConfig).",
        ),
        Option(
            "log_error_stack",
            bool,
            False,
            "Log the stack trace of each error that a request is answered with.",
        ),
        Option(
            "middleware",
            list[str],
            [],
            "ASGI middleware around all routes, by import path: classes, or coroutine functions of "
            "(request, call_next); the last one is outermost.",
        ),
        Option(
            "disable_fastapi_docs", bool, False, "No description of the routes at /openapi.json."
        ),
    ]


def _access() -> list[Option]:
    keys = (
        "Keys of which one must come as `Authorization: Bearer KEY` or `x-api-key: KEY`, on every "
        "path but probes."
    )
    return [
        Option("api_key", list[str], [], keys),
        Option(
            "tenant_header",
            str | None,
            None,
            "Header in which a proxy names the tenant of a request, on a server without API keys; "
            "default: each address is a tenant.",
        ),
        Option(
            "allowed_origins",
            list[str],
            [],
            "Web origins that browsers may call from (CORS); `*` for all.",
        ),
        Option(
            "allowed_methods",
            list[str],
            ["*"],
            "HTTP methods they may use.",
            needs=("allowed_origins",),
        ),
        Option(
            "allowed_headers",
            list[str],
            ["*"],
            "Request headers they may send.",
            needs=("allowed_origins",),
        ),
        Option(
            "allow_credentials",
            bool,
            False,
            "They may send cookies and the like.",
            needs=("allowed_origins",),
        ),
        Option(
            "ssl_certfile",
            str | None,
            None,
            "Certificate chain (PEM); with it the server speaks HTTPS.",
        ),
        Option(
            "ssl_keyfile",
            str | None,
            None,
            "Private key (PEM), where it is not in the certificate's file.",
        ),
        Option(
            "ssl_ca_certs", str | None, None, "Authorities that sign client certificates (PEM)."
        ),
        Option(
            "ssl_cert_reqs",
            Annotated[int, Range(0, 2)],
            0,
            "Client certificates: 0 none, 1 optional, 2 required.",
        ),
        Option(
            "ssl_ciphers",
            str | None,
            None,
            "Cipher suites of TLS 1.2, in OpenSSL's format; those of TLS 1.3 are fixed.",
        ),
        Option("enable_ssl_refresh", bool, False, "Read the files again when they change."),
    ]


def _request_limits() -> list[Option]:
    """Return the limits of one request."""
    return [
        Option(
            "max_request_bytes",
            Annotated[int, Range(1, 1 << 40)],
            10 * 1024 * 1024,
            "Largest request body.",
        ),
        Option(
            "h11_max_incomplete_event_size",
            Annotated[int, Range(256, 1 << 30)],
            64 * 1024,
            "Largest size of request line and headers, in bytes.",
        ),
        Option(
            "h11_max_header_count",
            Annotated[int, Range(1, 1 << 20)],
            256,
            "Largest number of headers of a request.",
        ),
        Option(
            "request_read_timeout",
            Seconds,
            60.0,
            "Seconds in which a request must arrive, its body included.",
        ),
    ]


def _connection_limits() -> list[Option]:
    """Return the limits of connections and of all requests."""
    return [
        Option(
            "stream_stall_timeout",
            Seconds,
            60.0,
            "Seconds after which a client that reads nothing is disconnected.",
        ),
        Option(
            "max_connections",
            Annotated[int, Range(1, 1 << 24)] | None,
            None,
            "Largest number of connections; default: as the limit of open files allows.",
        ),
        Option(
            "timeout_keep_alive",
            Annotated[float, Range(0, YEAR_S)],
            75.0,
            "Seconds a connection may be idle between two requests.",
        ),
        Option(
            "sse_keep_alive_interval",
            Annotated[float, Range(0, YEAR_S)],
            0.0,
            "Seconds after which a silent event stream gets a comment, so that proxies keep it "
            "open; 0: none.",
        ),
        Option(
            "max_bytes_in_flight",
            Annotated[int, Range(1, 1 << 44)] | None,
            None,
            "Largest size of all bodies being read at once; default: 256 MiB.",
        ),
        Option(
            "max_client_bytes_in_flight",
            Annotated[int, Range(1, 1 << 44)] | None,
            None,
            "Largest size of one client's bodies being read at once; default: a quarter of that.",
        ),
        Option(
            "shutdown_timeout",
            Annotated[float, Range(0, YEAR_S)],
            300.0,
            "Seconds open requests get after a signal.",
        ),
    ]
