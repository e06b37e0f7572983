"""The executor of `engine bench step`.

Loads only when named, so that nobody takes it for one that serves.
"""

from typing import Any

from core.api import EngineConfig, Entry, SchedulerExtension, hookimpl


@hookimpl
def engine_executors() -> list[Entry]:
    """Give the executor that computes nothing."""
    target = "builtin_plugins.commands.bench.stub:StubExecutor"
    return [
        Entry(
            "stub",
            target,
            "computes nothing, answers at once; for measuring the engine around the model",
        )
    ]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[SchedulerExtension]:
    """Give what is to be measured: the benchmark puts it there."""
    found: list[SchedulerExtension] = registry.shared("bench.step", list)
    return list(found)
