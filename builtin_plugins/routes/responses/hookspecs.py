"""Hooks of this plugin: open the database of stored responses, and connect tool servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api import hookspec

if TYPE_CHECKING:
    from builtin_plugins.routes.responses.database import Database
    from builtin_plugins.routes.responses.tool_server import ToolServer
    from core.api import EngineConfig


@hookspec
def engine_response_database(url: str, config: EngineConfig) -> Database | None:
    """Return the opened database of a URL, or None for a URL of another plugin.

    The first answer counts. Raises `ConfigError` for a database that cannot be used.
    """
    raise NotImplementedError


@hookspec
def engine_tool_servers(config: EngineConfig) -> Sequence[ToolServer]:
    """Return the configured tool servers, which are not connected yet.

    Raises `ConfigError`.
    """
    raise NotImplementedError
