"""Entry point of the distribution: `--tool-server` and its servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from core.api import EngineConfig, Option, Range, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builtin_plugins.routes.api import ToolServer


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "tool_server",
            str | None,
            None,
            "MCP servers with tools that /v1/responses runs: LABEL=URL, URL or HOST:PORT, with "
            "commas between them.",
        ),
        Option(
            "tool_call_timeout",
            Annotated[float, Range(0.1, 86400.0)],
            60.0,
            "Time limit of a call at a tool server, and of a listing, in seconds.",
            needs=("tool_server",),
        ),
    ]


@hookimpl(optionalhook=True)
def engine_tool_servers(config: EngineConfig) -> Sequence[ToolServer]:
    """Return the servers of `--tool-server`."""
    from engine_mcp.servers import read_servers  # lazy: mcp is slow to import

    timeout_s = config.options.get("tool_call_timeout", 60.0)
    return read_servers(config.options.get("tool_server") or "", timeout_s)


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    if config.options.get("tool_server"):
        engine_tool_servers(config)
