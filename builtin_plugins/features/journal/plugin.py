"""`--journal FILE`: records the scheduler, for `core.testing.replay`."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Option, Registry, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    text = "File that records plans and results for exact replay."
    return [Option("journal", str | None, None, text)]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    path = config.options.get("journal")
    if path is None:
        return []
    from builtin_plugins.features.journal.recorder import JournalExtension  # lazy: start-up

    return [JournalExtension(path)]
