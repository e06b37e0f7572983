"""Builds an engine core from configuration and plugins; the only module with all its parts."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from core.config import EngineConfig
from core.contracts.models import ModelSource
from core.contracts.workers import Executor
from core.engine.loop import EngineCore
from core.engine.memory import context_length, fit_memory
from core.engine.queue_limits import QueueLimits
from core.engine.resolve import Resolved
from core.kv import KVManager
from core.kv.layout import NULL_BLOCKS
from core.model_spec.kv import KVLayout
from core.plugin import Registry
from core.scheduler import Scheduler, SchedulerLimits
from core.step import WorkerInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """A running engine core, its final configuration, and its worker's facts
    about the model.
    """

    core: EngineCore
    config: EngineConfig
    info: WorkerInfo


def build(
    resolved: Resolved, registry: Registry, stage: Callable[[str], None] = lambda name: None
) -> Built:
    """Start the workers and build the engine core; `stage` receives the start-up stages.

    Raises `EngineError` with one clear block when a model, plugin or setting is invalid.
    """
    started_s = time.monotonic()
    config = resolved.config
    source = resolved.source
    stage("loading the model")
    make_executor = load(registry, "executors", config.parallel.distributed_executor_backend)
    executor = make_executor(config, registry, source)
    pending_calls: queue.Queue[tuple[Any, ...]] = queue.Queue()
    # Workers may send messages before there is an engine core.
    executor.on_message = lambda name, data: pending_calls.put(("receive_message", name, data))
    try:
        info = executor.start()
        is_keyed = all(getattr(layer.spec, "input_in_keys", True) for layer in info.layers)
        if not is_keyed and config.cache.enable_prefix_caching:
            log.info("prefix caching is off: cached tokens depend on the encoder's input")
            config = replace(config, cache=replace(config.cache, enable_prefix_caching=False))
        stage("allocating the KV cache")
        config, layout = fit_memory(config, info, cut_context=not resolved.context_is_chosen)
        executor.allocate(layout)
        pools = info.pooling is not None
        scheduler = _make_scheduler(config, registry, source, executor, layout, pools=pools)
        core = EngineCore(
            scheduler, executor, pending_calls, queue_limits=QueueLimits.of(config.scheduler)
        )
    except BaseException:
        executor.shutdown()
        raise
    num_blocks = sum(pool.num_blocks - NULL_BLOCKS for pool in layout.pools)
    cache = replace(config.cache, num_gpu_blocks_override=num_blocks or None)
    config = replace(config, cache=cache)
    log.info(
        "%s is ready after %.1f s: %s, context %d, %d KV blocks of %d tokens",
        source.name,
        time.monotonic() - started_s,
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
) -> Scheduler:
    section = config.scheduler
    kv = KVManager(
        layout, prefix_caching=config.cache.enable_prefix_caching, identity=source.identity
    )
    # A pooled output counts like a token, although it has no position.
    max_model_len = context_length(config) + pools
    limits = SchedulerLimits(
        max_num_batched_tokens=section.max_num_batched_tokens or 1,
        max_num_seqs=section.max_num_seqs or 1,
        max_model_len=max_model_len,
        chunked_prefill=section.enable_chunked_prefill,
        long_prefill_token_threshold=section.long_prefill_token_threshold,
        max_mixed_prefill_tokens=section.max_mixed_prefill_tokens or 0,
    )
    policy = None
    name = section.scheduling_policy
    if name != "fcfs" or registry.entries("scheduling_policies"):
        policy = registry.make(registry.choose("scheduling_policies", name), config)[0]
    extensions = registry.scheduler_extensions(config)
    scheduler = Scheduler(limits, kv, policy=policy, extensions=extensions, depth=executor.depth)
    for extension in extensions:
        if hasattr(extension, "wrap"):
            scheduler = extension.wrap(scheduler)
    return scheduler


def load(registry: Registry, kind: str, name: str | None, **facts: Any) -> Any:
    """Return the target of the entry with this name, or of the best one for these facts."""
    return registry.load(registry.choose(kind, name or "auto", facts))
