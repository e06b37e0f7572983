"""Routes of scores by a generating model: `/generative_scoring` and `/v1/decisions`."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.scoring.routes:ScoringRoutes"
    return [
        Entry("scoring", target, "probabilities of given tokens and answers", requires=("fastapi",))
    ]
