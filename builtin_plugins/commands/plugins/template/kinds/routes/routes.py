"""HTTP routes.

Third-party routes are off until the user names the plugin (`--plugins +acme`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from core.api import EngineConfig

if TYPE_CHECKING:
    from core.api.serving import ServedEngine


class Acme:
    """One route over one engine."""

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        return [Route("/acme", self._show, methods=["GET"])]

    async def _show(self, request: Request) -> JSONResponse:
        return JSONResponse(
            {"models": self._engine.served_names, "max_model_len": self._engine.max_model_len}
        )
