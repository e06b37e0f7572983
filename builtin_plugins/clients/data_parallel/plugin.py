"""Data parallelism: `--data-parallel-size` engines, each in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.api import Entry, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig


EXAMPLE_REQUESTS = [({"data_parallel_rank": 0}, "there", "there")]
"""Example requests of the conformance suite."""


@hookimpl
def engine_clients() -> list[Entry]:
    """Return the client; it serves two engines or more."""
    target = "builtin_plugins.clients.data_parallel.client:DataParallelClient"
    summary = "several engines in processes of their own; requests of a dead one move to others"
    when = {"data_parallel_size": range(2, 1025)}
    return [Entry("data_parallel", target, summary, priority=20, when=when)]


@hookimpl
def engine_admission_extensions(config: EngineConfig) -> list[Any]:
    # Imported lazily for a fast start.
    from builtin_plugins.clients.data_parallel.admission import EngineChoice

    return [EngineChoice(config.parallel.data_parallel_size)]
