"""A server: carries the routes of every group that is on.

This one is for trying things out: it has no guard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette

from core.api import EngineConfig, RouteGroup


class Acme:
    """Serves on the loopback address only."""

    def __init__(
        self,
        engine: Any,
        config: EngineConfig,
        groups: Mapping[str, RouteGroup] | Sequence[RouteGroup],
    ) -> None:
        every = groups.values() if isinstance(groups, Mapping) else groups
        self.app = Starlette(routes=[route for group in every for route in group.routes()])
        self._port = config.options.get("port", 8000)

    def run(self) -> int:
        """Serve until told to stop; return the exit status."""
        uvicorn.run(self.app, host="127.0.0.1", port=self._port)
        return 0
