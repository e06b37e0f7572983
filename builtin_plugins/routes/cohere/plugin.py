"""`/v2/chat`, as Cohere's clients call it."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.cohere.routes:CohereRoutes"
    return [Entry("cohere", target, "chat", requires=("fastapi",))]
