"""Assembles an engine: plugins and configuration in, running parts out. The only place that knows all parts."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from core.config.build import config_from_kwargs, plugins_from_kwargs
from core.engine.admission import Admission, ModelLimits
from core.engine.core import EngineCore
from core.engine.rendering import Renderer
from core.engine.resolve import Resolved, resolve
from core.engine.sinks import Guarded, Sinks
from core.errors import ConfigError
from core.kv import KVManager, plan_layout
from core.plugin import load_plan, make_plan
from core.scheduler import Journal, Scheduler, SchedulerLimits

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts import ChatRenderer, Executor, ModelSource, SchedulingPolicy, Tokenizer
    from core.kv_spec import KVLayout
    from core.plugin import Registry
    from core.step import WorkerInfo

log = logging.getLogger(__name__)

SMALLEST_CONTEXT = 32
"""Below this many tokens an engine is of no use, so the cache is called too small instead."""


@dataclass(slots=True)
class EngineParts:
    """Everything a client (LLM, AsyncLLM) holds of a running engine."""

    config: EngineConfig
    registry: Registry
    source: ModelSource
    core: EngineCore
    renderer: Renderer
    admission: Admission
    info: WorkerInfo

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None when it was switched off."""
        return self.renderer.tokenizer

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """Sampling parameters of requests that do not set them."""
        model = self.config.model
        base = {} if model.generation_config == "vllm" else dict(self.source.sampling_defaults)
        return base | model.override_generation_config


def load_from_kwargs(kwargs: Mapping[str, Any]) -> tuple[EngineConfig, Registry]:
    """Return configuration and plugins for keywords of `LLM(...)`; both are complete before torch is imported."""
    registry = load_plan(make_plan(*plugins_from_kwargs(kwargs)))
    config = config_from_kwargs(kwargs, registry.options())
    if "log_level" in kwargs:  # a library leaves logging alone unless told
        logging.getLogger("core").setLevel(config.observability.log_level.upper())
    return config, registry


def build(config: EngineConfig, registry: Registry, *, serving: bool) -> EngineParts:
    """Start an engine and return its parts.

    Raises `EngineError` with one clear block when the model, a plugin or a setting does not hold.
    """
    started = time.monotonic()
    registry.process_started("main")
    resolved = resolve(config, registry, serving=serving)
    config, source = resolved.config, resolved.source
    with ThreadPoolExecutor(1) as pool:
        # The tokenizer is read while weights are: both are mostly outside the interpreter lock.
        text = pool.submit(_load_text, config, registry, source)
        sinks = _load_sinks(config, registry) if serving else Sinks()
        executor = _load(registry, "executors", config.parallel.distributed_executor_backend)(config, registry, source)
        try:
            return _assemble(resolved, registry, executor, text, sinks, started)
        except BaseException:
            executor.shutdown()
            raise


def _assemble(
    resolved: Resolved, registry: Registry, executor: Executor, text: Future[Renderer], sinks: Sinks, started: float
) -> EngineParts:
    config, source = resolved.config, resolved.source
    info = executor.start()
    config, layout = _fit_memory(config, info, cut_context=not resolved.context_is_chosen)
    executor.allocate(layout)
    scheduler = _make_scheduler(config, registry, source, layout, executor.depth)
    renderer = text.result()
    journal = None if config.scheduler.journal is None else Journal(config.scheduler.journal, scheduler)
    core = EngineCore(scheduler, executor, sinks=sinks, journal=journal)
    admission = _make_admission(config, registry, source, info, renderer.tokenizer)
    registry.check_combination()
    log.info(
        "%s is ready after %.1f s: %s, context %d, %d KV blocks of %d tokens",
        source.name,
        time.monotonic() - started,
        config.model.dtype,
        _context(config),
        sum(pool.num_blocks for pool in layout.pools),
        config.cache.block_size,
    )
    return EngineParts(
        config=config,
        registry=registry,
        source=source,
        core=core,
        renderer=renderer,
        admission=admission,
        info=info,
    )


def _context(config: EngineConfig) -> int:
    if config.model.max_model_len is None:
        raise ConfigError("the context length was not resolved; this is a fault of the engine, please report it.")
    return config.model.max_model_len


def _fit_memory(config: EngineConfig, info: WorkerInfo, *, cut_context: bool) -> tuple[EngineConfig, KVLayout]:
    """Divide the KV memory. A context length the user left open, or that is more than a fixed number of blocks holds, is cut to what fits."""
    most = _context(config)

    def plan(length: int) -> KVLayout:
        return plan_layout(
            info.layers,
            block_size=config.cache.block_size,
            memory_bytes=config.cache.kv_cache_memory_bytes or info.kv_memory_bytes,
            num_blocks=config.cache.num_gpu_blocks_override,
            max_model_len=length,
            max_num_seqs=config.scheduler.max_num_seqs or 1,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        )

    try:
        return config, plan(most)
    except ConfigError:
        if not cut_context and config.cache.num_gpu_blocks_override is None:
            raise
    low, high = SMALLEST_CONTEXT, most  # low fits or the cache is too small at all; high does not fit
    layout = plan(low)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            low, layout = middle, plan(middle)
        except ConfigError:
            high = middle
    log.warning("the KV cache holds %d tokens, so the context is cut to that from %d (--max-model-len)", low, most)
    return replace(config, model=replace(config.model, max_model_len=low)), layout


def _make_scheduler(
    config: EngineConfig, registry: Registry, source: ModelSource, layout: KVLayout, depth: int
) -> Scheduler:
    section = config.scheduler
    kv = KVManager(layout, prefix_caching=config.cache.enable_prefix_caching, identity=source.identity)
    limits = SchedulerLimits(
        max_num_batched_tokens=section.max_num_batched_tokens or 1,
        max_num_seqs=section.max_num_seqs or 1,
        max_model_len=_context(config),
        chunked_prefill=section.enable_chunked_prefill,
        long_prefill_token_threshold=section.long_prefill_token_threshold,
        max_waiting=section.max_waiting,
    )
    policy: SchedulingPolicy | None = None
    if registry.entries("scheduling_policies"):
        policy = _load(registry, "scheduling_policies", section.scheduling_policy)()
    elif section.scheduling_policy != "fcfs":
        registry.choose("scheduling_policies", section.scheduling_policy)  # raises, naming what is missing
    extensions = registry.scheduler_extensions(config)
    return Scheduler(limits, kv, policy=policy, extensions=extensions, depth=depth)


def _make_admission(
    config: EngineConfig, registry: Registry, source: ModelSource, info: WorkerInfo, tokenizer: Tokenizer | None
) -> Admission:
    eos = source.eos_token_ids
    if not eos and tokenizer is not None and tokenizer.eos_token_id is not None:
        eos = (tokenizer.eos_token_id,)
    limits = ModelLimits(info.vocab_size, _context(config), config.model.max_logprobs, eos)
    processors = [registry.load(registered) for registered in registry.entries("logits_processors")]
    return Admission(limits, tokenizer, processors, config.model.seed)


def _load_text(config: EngineConfig, registry: Registry, source: ModelSource) -> Renderer:
    """Load tokenizer and chat renderer; either may be absent."""
    if config.model.skip_tokenizer_init:
        return Renderer(None, None, None)
    mode = config.model.tokenizer_mode
    tokenizer = _load(registry, "tokenizers", source.tokenizer if mode == "auto" else mode)(source, config)
    chat: ChatRenderer | None = None
    if tokenizer is not None and registry.entries("chat_renderers"):
        chat = _load(registry, "chat_renderers", "auto")(tokenizer, source, config)
    return Renderer(tokenizer, chat, config.model.chat_template)


def _load_sinks(config: EngineConfig, registry: Registry) -> Sinks:
    if config.observability.disable_log_stats:
        return Sinks()
    guarded = []
    for registered in registry.entries("metric_sinks"):
        sink = registry.load(registered)(config)
        guarded.append(Guarded(registered.entry.name, str(registered.plugin), sink))
    return Sinks(guarded)


def _load(registry: Registry, kind: str, wanted: str | None) -> Any:
    return registry.load(registry.choose(kind, wanted or "auto"))


def served_names(config: EngineConfig) -> Sequence[str]:
    """Return the names the model answers to; the first is the one shown."""
    name = config.model.model
    return config.model.served_model_name or [name.rstrip("/") if os.path.isdir(name) else name]
