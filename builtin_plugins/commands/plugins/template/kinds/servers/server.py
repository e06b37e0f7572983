"""A server: serves the enabled route groups.

This one is for experiments: it has no authentication and no limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

from builtin_plugins.servers.api import RouteGroup
from core.api import EngineConfig

if TYPE_CHECKING:
    from core.api.serving import ServedEngine


class Acme:
    """Serves on the loopback address only."""

    def __init__(
        self,
        engine: ServedEngine,
        config: EngineConfig,
        groups: Mapping[str, RouteGroup] | Sequence[RouteGroup],
    ) -> None:
        every = groups.values() if isinstance(groups, Mapping) else groups
        self.app = Starlette(routes=[route for group in every for route in group.routes()])
        self._port = config.options.get("port", 8000)

    def run(self) -> int:
        """Serve until stopped; return the exit status."""
        uvicorn.run(self.app, host="127.0.0.1", port=self._port)
        return 0
