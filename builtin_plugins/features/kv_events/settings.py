"""`--kv-events-config`: typed, checked once. Names and defaults are vLLM's."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from core.api import ConfigError, EngineConfig, did_you_mean

FLAG: Final = "--kv-events-config"
SCHEMES: Final = ("tcp://", "ipc://")
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """The values of the option."""

    enable_kv_cache_events: bool = False
    """Publish events."""
    publisher: Literal["null", "zmq"] | None = None
    """None: zmq, if events are enabled."""
    endpoint: str = "tcp://*:5557"
    """Address of the PUB socket. Bound for `*`, `::` and ipc; otherwise connected."""
    replay_endpoint: str | None = None
    """Address of the replay socket, which is bound."""
    buffer_steps: Count = 10_000
    """Batches retained for replays."""
    hwm: Count = 100_000
    """Batches queued for one slow subscriber; it misses further ones."""
    max_queue_size: Count = 100_000
    """Changes queued for publication. Further ones are lost, and leave a gap in the numbers."""
    topic: str = ""
    """ZeroMQ topic of all messages."""
    block_hashes: Literal["int", "bytes"] = "int"
    """Format of block hashes: their last eight bytes as an integer, as in vLLM, or all bytes."""

    def of_rank(self, rank: int) -> Settings:
        """Return the settings of a data-parallel rank: each has ports of its own, as in vLLM."""
        replay = self.replay_endpoint
        return msgspec.structs.replace(
            self,
            endpoint=_of_rank(self.endpoint, rank),
            replay_endpoint=None if replay is None else _of_rank(replay, rank),
        )


def settings_of(config: EngineConfig) -> Settings | None:
    """Return the settings; None: events are off. Raises `ConfigError` naming the key."""
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
    others = sorted({*given} - {"enable_kv_cache_events", "publisher"})
    if not settings.enable_kv_cache_events and others:
        raise ConfigError(
            f"{FLAG}.{others[0]}: got {given[others[0]]!r:.100}; it has no effect without "
            "enable_kv_cache_events. Set that to true, or remove it."
        )
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
    _check_ranks(settings, config.parallel.data_parallel_size)
    if not config.cache.enable_prefix_caching:
        raise ConfigError(
            f"{FLAG} needs the prefix cache. Remove --no-enable-prefix-caching or the flag."
        )
    return settings


def _of_rank(endpoint: str, rank: int) -> str:
    """Return the endpoint of a rank: the port plus the rank, or a file of its own."""
    if not rank:
        return endpoint
    if endpoint.startswith("ipc://"):
        return f"{endpoint}_dp{rank}"
    address, _, port = endpoint.rpartition(":")
    return f"{address}:{int(port) + rank}"


def _check_ranks(settings: Settings, num_ranks: int) -> None:
    """Raise `ConfigError` if the ranks' endpoints are not all different and valid."""
    if num_ranks == 1:
        return
    given = {"endpoint": settings.endpoint, "replay_endpoint": settings.replay_endpoint}
    ports: dict[str, int] = {}
    for name, endpoint in given.items():
        if endpoint is None or not endpoint.startswith("tcp://"):
            continue
        port = endpoint.rpartition(":")[2]
        if not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65536 - num_ranks:
            raise ConfigError(
                f"{FLAG}.{name}: got {endpoint!r:.100}; expected a port of 1 to "
                f"{65536 - num_ranks}: {num_ranks} data-parallel ranks take one each from it on."
            )
        ports[name] = int(port)
    if len(ports) == len(given) and abs(ports["endpoint"] - ports["replay_endpoint"]) < num_ranks:
        raise ConfigError(
            f"{FLAG}.replay_endpoint: got port {ports['replay_endpoint']}; expected one at least "
            f"{num_ranks} away from that of endpoint ({ports['endpoint']}): each data-parallel "
            "rank adds its own number to both."
        )
