"""What a client holds of an engine whatever process that runs in: text, limits, names.

Knows no scheduler, no worker.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from core.config.build import config_from_kwargs, plugins_from_kwargs
from core.contracts import Edge
from core.engine.admission import Admission, ModelLimits
from core.engine.build import build, load
from core.engine.memory import context_length
from core.engine.resolve import find_model, resolve
from core.engine.sinks import Guarded, Sinks
from core.plugin import Registry, load_named, load_plan, make_plan
from core.plugin.named_processors import logits_processors
from core.text.rendering import Renderer
from core.types.keywords import Names

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts import Client, Listener, ModelSource, Runner
    from core.engine.core import EngineCore
    from core.step import WorkerInfo


@dataclass(frozen=True, slots=True)
class Front:
    """Everything between a user's request and an engine request."""

    config: EngineConfig
    registry: Registry
    source: ModelSource
    renderer: Renderer
    admission: Admission
    info: WorkerInfo
    runner: Runner

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """Sampling parameters of requests that do not set them."""
        model = self.config.model
        base = {} if model.generation_config == "vllm" else dict(self.source.sampling_defaults)
        return base | model.override_generation_config


def load_from_kwargs(kwargs: Mapping[str, Any]) -> tuple[EngineConfig, Registry]:
    """Return configuration and plugins for keywords of `LLM(...)`; both are complete before torch
    is imported.
    """
    registry = load_plan(make_plan(*plugins_from_kwargs(kwargs)))
    config, registry = load_named(config_from_kwargs(kwargs, registry.options()), registry)
    if "log_level" in kwargs:  # a library leaves logging alone unless told
        logging.getLogger("core").setLevel(config.observability.log_level.upper())
    return config, registry


def open_here(config: EngineConfig, registry: Registry) -> tuple[Front, EngineCore]:
    """Start an engine in this process and thread, for its caller to step.

    Raises `EngineError` with one clear block when the model, a plugin or a setting does not hold.
    """
    registry.process_started("main")
    resolved = resolve(config, registry, serving=False)
    with ThreadPoolExecutor(1) as pool:
        # The tokenizer is read while weights are: both are mostly outside the interpreter lock.
        text = pool.submit(load_text, resolved.config, registry, resolved.source)
        built = build(resolved, registry)
        try:
            front = make_front(built.config, registry, resolved.source, text.result(), built.info)
            registry.check_combination()
        except BaseException:
            built.core.shutdown()
            raise
    return front, built.core


def connect(
    config: EngineConfig, registry: Registry, listener: Listener, meanwhile: Callable[[], None]
) -> tuple[Front, Client]:
    """Start an engine where the best client has it, do other things meanwhile, and wait for it.

    Raises as `open_here`.
    """
    registry.process_started("main")
    wanted = "thread" if config.service.disable_frontend_multiprocessing else "auto"
    client: Client = load(registry, "clients", wanted)(config, registry, listener)
    try:
        source = find_model(config, registry)
        renderer = load_text(config, registry, source)
        meanwhile()
        running = client.wait()
        front = make_front(running.config, registry, source, renderer, running.info)
        registry.check_combination()
    except BaseException:
        client.stop()
        raise
    return front, client


def make_front(
    config: EngineConfig,
    registry: Registry,
    source: ModelSource,
    renderer: Renderer,
    info: WorkerInfo,
) -> Front:
    """Return the front of an engine that has started."""
    eos = source.eos_token_ids
    tokenizer = renderer.tokenizer
    if not eos and tokenizer is not None and tokenizer.eos_token_id is not None:
        eos = (tokenizer.eos_token_id,)
    runner: Runner = load(registry, "runners", config.model.runner)(registry)
    reason = f" ({info.shortened_by})" if info.shortened_by else ""
    limits = ModelLimits(
        info.vocab_size,
        context_length(config),
        config.model.max_logprobs,
        eos,
        runner.generates,
        reason,
    )
    processors = [registry.load(registered) for registered in logits_processors(config, registry)]
    edge = Edge(info.facts, renderer.prompt, tokenizer, limits.vocab_size, limits.max_model_len)
    extensions = registry.admission_extensions(config, edge)
    renderer.keys = Names.of((each for _, each in extensions), "prompt_keys")
    read = partial(runner.admit, info.pooling)
    admission = Admission(limits, tokenizer, processors, config.model.seed, extensions, read)
    return Front(config, registry, source, renderer, admission, info, runner)


def load_text(config: EngineConfig, registry: Registry, source: ModelSource) -> Renderer:
    """Load tokenizer and chat renderer; either may be absent."""
    if config.model.skip_tokenizer_init:
        return Renderer(None, None)
    mode = config.model.tokenizer_mode
    encoding = registry.choose("tokenizers", (source.tokenizer or mode) if mode == "auto" else mode)
    tokenizer = registry.load(encoding)(source, config)
    renders = tokenizer is not None and registry.entries("chat_renderers")
    chat = (
        registry.make(registry.choose("chat_renderers"), tokenizer, source, config)[0]
        if renders
        else None
    )
    return Renderer(tokenizer, chat, registry.blame(encoding))


def load_sinks(config: EngineConfig, registry: Registry) -> Sinks:
    """Load the metric sinks, unless they are switched off."""
    entries = () if config.observability.disable_log_stats else registry.entries("metric_sinks")
    return Sinks(
        [
            Guarded(each.entry.name, str(each.plugin), registry.make(each, config)[0])
            for each in entries
        ]
    )


def served_names(config: EngineConfig) -> Sequence[str]:
    """Return the names the model answers to; the first is the one shown."""
    name = config.model.model
    return config.model.served_model_name or [name.rstrip("/") if os.path.isdir(name) else name]
