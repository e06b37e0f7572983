"""Replicas of the engine's HTTP server on Ray Serve; their number follows the load.

    pip install "ray[serve]"
    serve run ray_serve:application model=Qwen/Qwen3-0.6B

Clients of OpenAI's API use http://127.0.0.1:8000/v1. Each replica is an engine with weights and a
KV cache of its own.
"""

from __future__ import annotations

from typing import Any

from ray import serve

from core import AsyncLLM


@serve.deployment(
    max_ongoing_requests=256,
    autoscaling_config={"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 32},
    graceful_shutdown_timeout_s=300,  # for the streams of a replica that is removed
)
@serve.ingress()
class Engine:
    """One replica."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """`settings`: keywords of `AsyncLLM`."""
        self.engine = AsyncLLM(**settings)

    def __serve_build_asgi_app__(self) -> Any:
        """Return the application of `engine serve`."""
        engine = self.engine
        registry = engine.registry
        groups = {
            route.entry.name: registry.load(route)(engine, engine.config)
            for route in registry.entries("routes")
        }
        make_server = registry.load(registry.choose("servers"))
        return make_server(engine, engine.config, groups).app

    def check_health(self) -> None:
        """Raise `EngineDead` if Ray Serve must replace this replica."""
        self.engine.check_health()

    def __del__(self) -> None:
        """End the engine's processes."""
        if hasattr(self, "engine"):
            self.engine.shutdown()


def application(settings: dict[str, Any]) -> serve.Application:
    """Return the application; `deployment` has options of Ray Serve, other keys the engine's."""
    own = {key: value for key, value in settings.items() if key != "deployment"}
    return Engine.options(**settings.get("deployment", {})).bind(own)
