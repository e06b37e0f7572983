"""Assembles what computes: configuration and plugins in, an engine core out.

The only place that knows all its parts.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from core.config import EngineConfig
from core.contracts import Executor, ModelSource
from core.engine.core import EngineCore
from core.engine.memory import context_length, fit_memory
from core.engine.resolve import Resolved
from core.kv import KVManager
from core.kv.layout import NULL_BLOCKS
from core.model_spec.kv import CrossAttention, KVLayout
from core.plugin import Registry
from core.scheduler import Scheduler, SchedulerLimits
from core.scheduler.journal import Journal
from core.step import WorkerInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """A running engine core, the configuration it has settled on, and what its worker says of the
    model.
    """

    core: EngineCore
    config: EngineConfig
    info: WorkerInfo


def build(
    resolved: Resolved, registry: Registry, stage: Callable[[str], None] = lambda name: None
) -> Built:
    """Start the workers and everything that drives them; `stage` is told what begins.

    Raises `EngineError` with one clear block when the model, a plugin or a setting does not hold.
    """
    started = time.monotonic()
    config = resolved.config
    source = resolved.source
    stage("loading the model")
    executor = load(registry, "executors", config.parallel.distributed_executor_backend)(
        config, registry, source
    )
    soon: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    executor.told = lambda name, data: soon.put(
        ("tell", name, data)
    )  # by workers that are not driven yet
    try:
        info = executor.start()
        beside = any(isinstance(layer.spec, CrossAttention) for layer in info.layers)
        if beside and config.cache.enable_prefix_caching:
            log.info(
                "prefix caching is off: what tokens leave in the cache depends on what stands "
                "beside them"
            )
            config = replace(config, cache=replace(config.cache, enable_prefix_caching=False))
        stage("allocating the KV cache")
        config, layout = fit_memory(config, info, cut_context=not resolved.context_is_chosen)
        executor.allocate(layout)
        scheduler = _make_scheduler(
            config, registry, source, executor, layout, pools=info.pooling is not None
        )
        core = EngineCore(scheduler, executor, soon, max_waiting=config.scheduler.max_waiting)
    except BaseException:
        executor.shutdown()
        raise
    num_blocks = sum(pool.num_blocks - NULL_BLOCKS for pool in layout.pools)
    config = replace(
        config, cache=replace(config.cache, num_gpu_blocks_override=num_blocks or None)
    )
    log.info(
        "%s is ready after %.1f s: %s, context %d, %d KV blocks of %d tokens",
        source.name,
        time.monotonic() - started,
        config.model.dtype,
        context_length(config),
        num_blocks,
        config.cache.block_size,
    )
    return Built(core, config, info)


def _make_scheduler(
    config: EngineConfig,
    registry: Registry,
    source: ModelSource,
    executor: Executor,
    layout: KVLayout,
    *,
    pools: bool,
) -> Scheduler | Journal:
    section = config.scheduler
    kv = KVManager(
        layout, prefix_caching=config.cache.enable_prefix_caching, identity=source.identity
    )
    limits = SchedulerLimits(
        max_num_batched_tokens=section.max_num_batched_tokens or 1,
        max_num_seqs=section.max_num_seqs or 1,
        max_model_len=context_length(config)
        + pools,  # what is pooled counts like a token, and has no position
        chunked_prefill=section.enable_chunked_prefill,
        long_prefill_token_threshold=section.long_prefill_token_threshold,
        max_mixed_prefill_tokens=section.max_mixed_prefill_tokens or 0,
    )
    wanted = section.scheduling_policy
    has = wanted != "fcfs" or registry.entries("scheduling_policies")
    policy = (
        registry.make(registry.choose("scheduling_policies", wanted), config)[0] if has else None
    )
    extensions = registry.scheduler_extensions(config)
    scheduler = Scheduler(limits, kv, policy=policy, extensions=extensions, depth=executor.depth)
    return scheduler if section.journal is None else Journal(section.journal, scheduler)


def load(registry: Registry, kind: str, wanted: str | None) -> Any:
    """Return what the entry called `wanted`, or the best one, stands for."""
    return registry.load(registry.choose(kind, wanted or "auto"))
