"""Explains the 404 of paths that clients know from other servers."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.missing.routes:MissingRoutes"
    return [Entry("missing", target, "reasons for paths that are not served")]
