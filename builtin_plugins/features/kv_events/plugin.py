"""`--kv-events-config`, and the half beside the scheduler that tells."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "kv_events_config",
            dict[str, Any] | None,
            None,
            "Who is told what the prefix cache remembers and forgets: enable_kv_cache_events, "
            "publisher (null, zmq), endpoint, "
            "replay_endpoint, buffer_steps, hwm, max_queue_size, topic, block_hashes (int, bytes).",
        )
    ]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.features.kv_events.settings import (
        settings_of,  # lazy: start-up stays quick
    )

    settings = settings_of(config)
    if settings is None:
        return []
    from builtin_plugins.features.kv_events.publisher import Publisher  # lazy: it opens sockets
    from builtin_plugins.features.kv_events.watching import Watching
    from core.contracts.kv_watchers import watchers_of

    watching = Watching(Publisher(settings), as_bytes=settings.block_hashes == "bytes")
    watchers_of(registry).append(watching.tier_changed)
    return [watching]
