"""`--gc-debug`: a log line for each garbage collection of the engine's and the API process."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Option, Registry, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    text = (
        "Log each garbage collection of the engine's and the API process: generation, time, and "
        "number of freed objects."
    )
    return [Option("gc_debug", bool, False, text)]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    return _extensions(config, registry)


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    return _extensions(config, registry)


def _extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    """Return the log of this process: one, also when both halves are in it."""
    if not config.options.get("gc_debug"):
        return []
    from builtin_plugins.features.gc_log.collection_log import CollectionLog  # lazy: quick start

    return [registry.shared("gc log", CollectionLog)]
