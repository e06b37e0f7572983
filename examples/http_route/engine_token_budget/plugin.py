"""The entry of token_budget, imported when chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "token_budget",
            "engine_token_budget.routes:TokenBudget",
            "POST /v1/token_budget: tokens taken and left",
            requires=("fastapi",),
        )
    ]
