"""KV events: the option `--kv-events-config`, and the scheduler half that publishes."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Entry, Option, Registry, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "kv_events_config",
            dict[str, Any] | None,
            None,
            "Publish the block changes of the prefix cache: enable_kv_cache_events, publisher "
            "(null, zmq), endpoint, replay_endpoint, buffer_steps, hwm, max_queue_size, topic, "
            "block_hashes (int, bytes). Data-parallel ranks add their number to the ports.",
        )
    ]


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.features.kv_events.routes:KvEventRoutes"
    return [Entry("kv_events", target, "address of the KV events", requires=("fastapi",))]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    from builtin_plugins.features.kv_events.settings import settings_of  # lazy: faster start-up

    if config.options.get("kv_events_config"):
        settings_of(config)


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    from builtin_plugins.features.kv_events.settings import settings_of  # lazy: faster start-up

    settings = settings_of(config)
    if settings is None:
        return []
    from builtin_plugins.features.kv_events.event_source import EventSource
    from builtin_plugins.features.kv_events.publisher import Publisher  # lazy: it needs sockets
    from builtin_plugins.kv_connectors.api import tier_listeners

    rank = config.options.get("data_parallel_rank", 0)
    publisher = Publisher(settings.of_rank(rank), rank)
    source = EventSource(publisher, as_bytes=settings.block_hashes == "bytes")
    tier_listeners(registry).append(source.tier_changed)
    return [source]
