"""KV tiers: options, the shipped connectors, and the halves of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from core.api import ConfigError, EngineConfig, Entry, Option, Range, Registry, hookimpl

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.api import KVTransferConfig

CONNECTORS: Final = "builtin_plugins.kv_connectors"


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "kv_transfer_config",
            dict[str, Any] | None,
            None,
            "Tier for cache blocks that the device has no room for: kv_connector (offload, disk, "
            "shared_storage, tcp, multi), kv_role, kv_load_failure_policy, "
            "kv_connector_extra_config, max_bytes_per_step, max_inflight_bytes, timeout_s.",
        ),
        Option(
            "kv_offloading_size",
            Annotated[float, Range(0, 1 << 20)] | None,
            None,
            "GiB of host memory for such blocks, of all ranks: connector `offload`, or `lmcache`.",
        ),
        Option(
            "kv_offloading_backend",
            Literal["native", "lmcache"] | None,
            None,
            "Implementation of --kv-offloading-size; native: the engine itself; lmcache: LMCache, "
            "by the plugin engine-lmcache.",
            needs=("kv_offloading_size",),
        ),
    ]


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    return [
        Entry(
            "offload",
            f"{CONNECTORS}.offload:Offload",
            "host memory, for the lifetime of the engine",
        ),
        Entry(
            "disk",
            f"{CONNECTORS}.disk:Disk",
            "a folder that is found again after a restart",
        ),
        Entry(
            "shared_storage",
            f"{CONNECTORS}.shared_storage:SharedStorage",
            "a folder shared by several engines, checked for each request",
        ),
        Entry(
            "tcp",
            f"{CONNECTORS}.tcp.connector:Tcp",
            "blocks exchanged with other engines",
        ),
    ]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    all_settings = _tiers_of(config)
    if not all_settings:
        return []
    from builtin_plugins.features.kv_tiers.admission import Admission  # lazy: faster start-up

    connectors = [(_make(config, settings, registry), settings) for settings in all_settings]
    for connector, settings in connectors:
        if hasattr(connector, "check"):
            return [Admission(connector, settings)]
    return []


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig, registry: Registry) -> None:
    for settings in _tiers_of(config):
        _choose(settings, registry)


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    all_settings = _tiers_of(config)
    if not all_settings:
        return []
    from builtin_plugins.features.kv_tiers.messages import tier_name  # lazy: faster start-up
    from builtin_plugins.features.kv_tiers.metrics import TierMetrics
    from builtin_plugins.features.kv_tiers.scheduling import KVTierScheduler
    from builtin_plugins.kv_connectors.api import tier_listeners
    from builtin_plugins.metric_sinks.api import gauge_providers, info_providers

    parallel = config.parallel
    tensor = parallel.tensor_parallel_size
    tiers: list[KVTierScheduler] = []
    for index, settings in enumerate(all_settings):
        tier = KVTierScheduler(
            _make(config, settings, registry),
            settings,
            tensor,
            tensor * parallel.pipeline_parallel_size,
            tier_listeners(registry),
            name=tier_name(index),
            above=tuple(tiers),
        )
        tiers.append(tier)
    metrics = TierMetrics(tiers)
    info_providers(registry)["kv_connector_info"] = metrics.info
    gauge_providers(registry)["kv_connectors"] = metrics.numbers
    return [*tiers]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    all_settings = _tiers_of(config)
    if not all_settings:
        return []
    from builtin_plugins.features.kv_tiers.messages import tier_name
    from builtin_plugins.features.kv_tiers.worker import KVTierWorker  # lazy: it needs torch

    return [
        KVTierWorker(_make(config, settings, registry), settings, tier_name(index))
        for index, settings in enumerate(all_settings)
    ]


def _tiers_of(config: EngineConfig) -> list[KVTransferConfig]:
    """Return the settings of each tier, in lookup order."""
    options = config.options
    if not options.get("kv_transfer_config") and options.get("kv_offloading_size") is None:
        return []
    from builtin_plugins.features.kv_tiers.settings import tiers_of  # lazy: faster start-up

    return tiers_of(config)


def _make(config: EngineConfig, settings: KVTransferConfig, registry: Registry) -> Any:
    """Return the connector of a tier. Raises `ConfigError` if it is not installed."""
    return registry.make(_choose(settings, registry), config, settings)[0]


def _choose(settings: KVTransferConfig, registry: Registry) -> Any:
    """Return the entry of a tier's connector. Raises `ConfigError` if it is not installed."""
    from builtin_plugins.features.kv_tiers.settings import INSTALL_HINTS  # lazy: faster start-up

    try:
        return registry.choose("kv_connectors", settings.kv_connector)
    except ConfigError as error:
        if settings.kv_connector not in INSTALL_HINTS:
            raise
        raise ConfigError(f"{error}. {INSTALL_HINTS[settings.kv_connector]}") from error
