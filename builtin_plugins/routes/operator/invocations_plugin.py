"""`/invocations`, as SageMaker calls a container: the body selects the route."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.operator.invocations:InvocationRoutes"
    return [Entry("invocations", target, "one path for all tasks", requires=("fastapi",))]
