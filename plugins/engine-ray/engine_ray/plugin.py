"""The launcher `ray`, the executor of that name, and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from core.api import Entry, Option, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry
    from core.api.execution import Executor
    from core.api.models import ModelSource

REQUIRES = ("ray>=2.40",)


@hookimpl
def engine_launchers() -> list[Entry]:
    """Return the launcher: `--launcher ray` also places the engine process."""
    target = "engine_ray.launcher:RayLauncher"
    return [Entry("ray", target, "actors of a Ray cluster", requires=REQUIRES)]


@hookimpl
def engine_executors() -> list[Entry]:
    """Return the executor: `--distributed-executor-backend ray` places the ranks only."""
    return [Entry("ray", ray_executor, "ranks as actors of a Ray cluster", requires=REQUIRES)]


def ray_executor(config: EngineConfig, registry: Registry, source: ModelSource) -> Executor:
    """Return the executor `mp` with ranks that Ray starts."""
    make = registry.load(registry.choose("executors", "mp"))
    executor: Executor = make(config, registry, source, launcher="ray")
    return executor


@hookimpl
def engine_options() -> list[Option]:
    """Return the options of placement."""
    strategies = Literal["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"]
    return [
        Option(
            "ray_address",
            str | None,
            None,
            "Ray cluster; default: RAY_ADDRESS, else a cluster that runs on this host, else a new "
            "one.",
        ),
        Option("ray_placement_strategy", strategies, "PACK", "How ranks are placed on nodes."),
        Option(
            "ray_resources",
            dict[str, Any] | None,
            None,
            'Resources of each rank; default: {"CPU": 1}, on GPUs {"GPU": 1}.',
        ),
        Option(
            "ray_runtime_env",
            dict[str, Any] | None,
            None,
            "Runtime environment of the actors, in Ray's form.",
        ),
    ]
