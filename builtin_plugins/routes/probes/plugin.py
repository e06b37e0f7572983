"""`/livez`, `/readyz`, `/health`, `/ping`, `/version`, `/load` and `/metrics`."""

from __future__ import annotations

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.probes.routes:ProbeRoutes"
    return [Entry("probes", target, "health, version, metrics", requires=("fastapi",))]


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "enable_server_load_tracking", bool, False, "Say at /load how many requests are open."
        )
    ]
