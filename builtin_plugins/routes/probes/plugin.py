"""`/health`, `/ping`, `/version` and `/metrics`."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.probes.routes:ProbeRoutes"
    return [Entry("probes", target, "health, version, metrics", requires=("fastapi",))]
