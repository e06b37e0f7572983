"""`--kv-events-config`: typed, checked once. Names and defaults are vLLM's."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from core.api import ConfigError, EngineConfig, did_you_mean

FLAG: Final = "--kv-events-config"
SCHEMES: Final = ("tcp://", "ipc://")
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """What is published, and where."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    """None: ZeroMQ, if events are on."""
    endpoint: str = "tcp://*:5557"
    """Bound where it names every interface (`*`, `::`) or a file; else connected to."""
    replay_endpoint: str | None = None
    """Bound, for subscribers that ask again for what they have missed."""
    buffer_steps: Count = 10_000
    """Batches that are kept for them."""
    hwm: Count = 100_000
    """Batches that wait for one slow subscriber; it misses those that come then."""
    max_queue_size: Count = 100_000
    """Events that wait to be published; of those that come then, subscribers see a gap that no
    replay fills.
    """
    topic: str = ""
    block_hashes: Literal["int", "bytes"] = "int"
    """How keys are spelled: their last eight bytes as a number, which vLLM's subscribers expect, or
    whole.
    """


def settings_of(config: EngineConfig) -> Settings | None:
    """Return the settings of a configuration; None: nothing is published.

    Raises `ConfigError` naming the key.
    """
    given = config.options.get("kv_events_config") or {}
    known = Settings.__struct_fields__
    for key in given:
        if key not in known:
            hint = did_you_mean(key, known)
            raise ConfigError(
                f"{FLAG} has no {key!r}{hint}{'' if hint else '; known: ' + ', '.join(known) + '.'}"
            )
    try:
        settings = msgspec.convert(given, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{FLAG}: {error}.") from error
    if not settings.enable_kv_cache_events or settings.publisher == "null":
        return None
    for name, endpoint in (
        ("endpoint", settings.endpoint),
        ("replay_endpoint", settings.replay_endpoint),
    ):
        if endpoint is not None and not endpoint.startswith(SCHEMES):
            raise ConfigError(
                f"{FLAG}.{name} {endpoint!r:.100} must begin with {' or '.join(SCHEMES)}."
            )
    if not config.cache.enable_prefix_caching:
        raise ConfigError(
            f"{FLAG} tells of the prefix cache; leave out --no-enable-prefix-caching."
        )
    return settings
