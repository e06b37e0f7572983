"""Route group of scores by a generating model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.routing import Route

from builtin_plugins.routes.common.schema import body_schema
from builtin_plugins.routes.scoring.decisions import DecisionFields, Decisions
from builtin_plugins.routes.scoring.generative import GenerativeScoring, ScoringFields
from core.api import EngineConfig
from core.api.serving import ServedEngine


class ScoringRoutes:
    """Routes of one engine."""

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._strict = bool(config.options.get("strict_fields"))
        self._scoring = GenerativeScoring(engine, strict=self._strict)
        self._decisions = Decisions(engine, strict=self._strict)

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        return [
            Route("/generative_scoring", self._scoring.create, methods=["POST"]),
            Route("/v1/decisions", self._decisions.create, methods=["POST"]),
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        return {
            "/generative_scoring": body_schema(ScoringFields, strict=self._strict),
            "/v1/decisions": body_schema(DecisionFields, strict=self._strict),
        }
