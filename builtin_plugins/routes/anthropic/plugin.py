"""`/v1/messages` and `/v1/messages/count_tokens`, as Anthropic's clients call them."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.anthropic.routes:AnthropicRoutes"
    return [Entry("anthropic", target, "messages", requires=("fastapi",))]
