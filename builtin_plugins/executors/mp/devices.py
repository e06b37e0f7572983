"""Which GPU each rank of an engine computes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builtin_plugins.launchers.api import is_local, num_nodes
from builtin_plugins.platforms.api import ALLOW_EQUAL_NUMBERS, VISIBLE_GPUS, visible_gpus
from core.api import ConfigError, EngineConfig


def device_environment(
    config: EngineConfig, rank: int, gpus: Sequence[str] | None = None
) -> Mapping[str, str]:
    """Return the environment that gives a rank a GPU of its own; empty on machines without GPUs.

    `gpus`: GPUs of this process; default: those that it may use. Another launcher than `local`
    decides itself which devices its processes have. Raises `ConfigError` for fewer GPUs than ranks.
    """
    parallel = config.parallel
    num_ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    gpus = visible_gpus() if gpus is None else gpus
    is_elsewhere = num_nodes(config) > 1 or not is_local(config)
    if num_ranks == 1 or config.device.device == "cpu" or is_elsewhere or not gpus:
        return {}
    if len(gpus) < num_ranks:
        raise ConfigError(
            f"--tensor-parallel-size, --pipeline-parallel-size: got {num_ranks} ranks; "
            f"expected at most one for each of {len(gpus)} GPUs. Lower them, or use --device cpu."
        )
    return {VISIBLE_GPUS: gpus[rank], ALLOW_EQUAL_NUMBERS: "1"}
