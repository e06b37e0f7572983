"""KV connectors: the options, those that are shipped, and the halves in the scheduler and in
workers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from builtin_plugins.kv_connectors.messages import name_of
from builtin_plugins.kv_connectors.settings import CURES, tiers_of
from core.api import ConfigError, EngineConfig, Entry, KVTransferConfig, Option, Within, hookimpl

CONNECTORS = "builtin_plugins.kv_connectors"


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "kv_transfer_config",
            dict[str, Any] | None,
            None,
            "Where cached blocks go that the device has no room for, and come back from: "
            "kv_connector (offload, disk, shared_storage, tcp, multi), kv_role, "
            "kv_load_failure_policy, kv_connector_extra_config, step_bytes, most_bytes_under_way, "
            "timeout_s.",
        ),
        Option(
            "kv_offloading_size",
            Annotated[float, Within(0, 1 << 20)] | None,
            None,
            "GiB of host memory for such blocks, of all ranks: connector `offload`, or `lmcache`.",
        ),
        Option(
            "kv_offloading_backend",
            Literal["native", "lmcache"] | None,
            None,
            "Who keeps them; native: the engine itself; lmcache: LMCache, by the plugin "
            "engine-lmcache.",
        ),
    ]


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    return [
        Entry(
            "offload", f"{CONNECTORS}.offload:Offload", "host memory, as long as the engine lives"
        ),
        Entry("disk", f"{CONNECTORS}.disk:Disk", "a folder, which is found again after a restart"),
        Entry(
            "shared_storage",
            f"{CONNECTORS}.shared_storage:SharedStorage",
            "a folder of several engines, looked into each time",
        ),
        Entry(
            "tcp",
            f"{CONNECTORS}.tcp.connector:Tcp",
            "blocks of other engines, and this one's for them",
        ),
    ]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.kv_connectors.transfer import Admission  # lazy: start-up stays quick

    made = ((_made(config, settings, registry), settings) for settings in tiers_of(config))
    return [Admission(*each) for each in made if hasattr(each[0], "check")][:1]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    wanted = tiers_of(config)
    if not wanted:
        return []
    from builtin_plugins.kv_connectors.scheduling import Traffic  # lazy: start-up stays quick
    from builtin_plugins.kv_connectors.tiers import Tiers
    from core.contracts.infos import infos_of, numbers_of
    from core.contracts.kv_watchers import watchers_of

    parallel = config.parallel
    tensor = parallel.tensor_parallel_size
    tiers: list[Traffic] = []
    for place, settings in enumerate(wanted):
        connector = _made(config, settings, registry)
        ranks = tensor, tensor * parallel.pipeline_parallel_size, watchers_of(registry)
        tiers.append(Traffic(connector, settings, *ranks, name=name_of(place), above=tuple(tiers)))
    shown = Tiers(tiers)
    infos_of(registry)["kv_connector_info"] = shown.info
    numbers_of(registry)["kv_connectors"] = shown.numbers
    return [*tiers]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    wanted = tiers_of(config)
    if not wanted:
        return []
    from builtin_plugins.kv_connectors.worker import Mover  # lazy: only workers need torch

    made = [(_made(config, settings, registry), settings) for settings in wanted]
    return [
        Mover(connector, settings, name_of(place))
        for place, (connector, settings) in enumerate(made)
    ]


def _made(config: EngineConfig, settings: KVTransferConfig, registry: Any) -> Any:
    try:
        chosen = registry.choose("kv_connectors", settings.kv_connector)
    except ConfigError as error:
        if settings.kv_connector not in CURES:
            raise
        raise ConfigError(f"{error}. {CURES[settings.kv_connector]}") from error
    return registry.make(chosen, config, settings)[0]
