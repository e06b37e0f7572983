"""The HTTP server of `engine serve`: uvicorn, one error format, keys, size limits, graceful end."""

from __future__ import annotations

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_servers() -> list[Entry]:
    target = "builtin_plugins.servers.http.server:HttpServer"
    return [Entry("http", target, "HTTP over uvicorn", requires=("fastapi", "uvicorn"))]


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option("host", str, "127.0.0.1", "Address to listen on; 0.0.0.0 for every network the machine is in."),
        Option("port", int, 8000, "Port to listen on; 0 takes a free one."),
        Option(
            "api_key",
            list[str],
            [],
            "Keys of which one must come as `Authorization: Bearer KEY`, on every path but probes.",
        ),
        Option("allowed_origins", list[str], [], "Web origins that browsers may call from (CORS); `*` for all."),
        Option("root_path", str, "", "Path under which a proxy shows the server."),
        Option("max_request_bytes", int, 10 * 1024 * 1024, "Largest request body."),
        Option("strict_fields", bool, False, "Refuse requests with unknown fields instead of naming them in a header."),
        Option("enable_request_id_headers", bool, False, "Answer with X-Request-Id, the client's or a new one."),
        Option("uvicorn_log_level", str, "info", "Least important lines of uvicorn's log."),
        Option("disable_uvicorn_access_log", bool, False, "No log line per HTTP request."),
        Option("log_config_file", str | None, None, "JSON file with a logging configuration (Python's dictConfig)."),
    ]
