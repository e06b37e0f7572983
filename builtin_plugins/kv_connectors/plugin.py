"""KV connectors: the options, those that are shipped, and the halves in the scheduler and in workers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from builtin_plugins.kv_connectors.settings import settings_of
from core.api import EngineConfig, Entry, KVTransferConfig, Option, Within, hookimpl

CONNECTORS = "builtin_plugins.kv_connectors"


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "kv_transfer_config",
            dict[str, Any] | None,
            None,
            "Where cached blocks go that the device has no room for, and come back from: kv_connector (offload, disk), kv_role, "
            "kv_load_failure_policy, kv_connector_extra_config, step_bytes, most_bytes_under_way, timeout_s.",
        ),
        Option(
            "kv_offloading_size",
            Annotated[float, Within(0, 1 << 20)] | None,
            None,
            "GiB of host memory for such blocks, of all ranks: connector `offload`.",
        ),
        Option(
            "kv_offloading_backend",
            Literal["native", "lmcache"] | None,
            None,
            "Who keeps them; native: the engine itself.",
        ),
    ]


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    return [
        Entry("offload", f"{CONNECTORS}.offload:Offload", "host memory, as long as the engine lives"),
        Entry("disk", f"{CONNECTORS}.disk:Disk", "a folder, which is found again after a restart"),
    ]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    settings = settings_of(config)
    if settings is None:
        return []
    from builtin_plugins.kv_connectors.scheduling import Traffic  # lazy: start-up stays quick
    from core.contracts.infos import infos_of, numbers_of
    from core.contracts.kv_watchers import watchers_of

    parallel = config.parallel
    tensor = parallel.tensor_parallel_size
    connector = _made(config, settings, registry)
    ranks = tensor * parallel.pipeline_parallel_size
    traffic = Traffic(connector, settings, tensor, ranks, watchers_of(registry))
    infos_of(registry)["kv_connector_info"] = traffic.info
    numbers_of(registry)["kv_connectors"] = traffic.numbers
    return [traffic]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    settings = settings_of(config)
    if settings is None:
        return []
    from builtin_plugins.kv_connectors.worker import Mover  # lazy: only workers need torch

    return [Mover(_made(config, settings, registry), settings)]


def _made(config: EngineConfig, settings: KVTransferConfig, registry: Any) -> Any:
    return registry.make(registry.choose("kv_connectors", settings.kv_connector), config, settings)[0]
