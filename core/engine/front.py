"""What a client holds of an engine whatever process that runs in: text, limits, names. Knows no scheduler, no worker."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from core.config.build import config_from_kwargs, plugins_from_kwargs
from core.engine.admission import Admission, ModelLimits
from core.engine.build import build, load
from core.engine.loop_thread import Listener
from core.engine.memory import context_length
from core.engine.rendering import Renderer
from core.engine.resolve import find_model, resolve
from core.engine.sinks import Guarded, Sinks
from core.errors import ConfigError
from core.plugin import Registry, load_named, load_plan, make_plan
from core.plugin_args import logits_processors
from core.prompts import Prompt

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts import ChatRenderer, ModelSource, Runner
    from core.engine.core import EngineCore
    from core.engine.supervised import Supervised
    from core.pooling_types import PoolingParams
    from core.step import EngineRequest, WorkerInfo
    from core.types import SamplingParams


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

    def admit(
        self,
        request_id: str,
        prompt: Prompt,
        sampling: SamplingParams | PoolingParams,
        priority: int,
        cache_salt: str = "",
    ) -> list[EngineRequest]:
        """Return the engine requests of a prompt that arrives now; as `Admission.admit`."""
        salt, now_s, read = cache_salt or prompt.cache_salt, time.monotonic(), prompt.encoder
        return self.admission.admit(
            request_id, prompt.token_ids, sampling, arrival_s=now_s, priority=priority, cache_salt=salt, encoder=read
        )

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """Sampling parameters of requests that do not set them."""
        model = self.config.model
        base = {} if model.generation_config == "vllm" else dict(self.source.sampling_defaults)
        return base | model.override_generation_config


def load_from_kwargs(kwargs: Mapping[str, Any]) -> tuple[EngineConfig, Registry]:
    """Return configuration and plugins for keywords of `LLM(...)`; both are complete before torch is imported."""
    registry = load_plan(make_plan(*plugins_from_kwargs(kwargs)))
    config, registry = load_named(config_from_kwargs(kwargs, registry.options()), registry)
    if "log_level" in kwargs:  # a library leaves logging alone unless told
        logging.getLogger("core").setLevel(config.observability.log_level.upper())
    return config, registry


def open_here(config: EngineConfig, registry: Registry, *, serving: bool) -> tuple[Front, EngineCore]:
    """Start an engine in this process.

    Raises `EngineError` with one clear block when the model, a plugin or a setting does not hold.
    """
    registry.process_started("main")
    resolved = resolve(config, registry, serving=serving)
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


def open_apart(
    config: EngineConfig, registry: Registry, listener: Listener, meanwhile: Callable[[], None]
) -> tuple[Front, Supervised]:
    """Start an engine in a process of its own, do other things meanwhile, and wait for it. Raises as `open_here`."""
    try:
        from core.engine.supervised import Supervised  # lazy: an engine in this process needs no sockets
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"an engine in a process of its own needs {error.name}, which is not installed: `pip install pyzmq`, or "
            "keep the engine in this process with --disable-frontend-multiprocessing."
        ) from error
    registry.process_started("main")
    client = Supervised(config, registry, listener)
    try:
        source = find_model(config, registry)
        renderer = load_text(config, registry, source)
        meanwhile()
        ready = client.wait()
        front = make_front(ready.config, registry, source, renderer, ready.info)
        registry.check_combination()
    except BaseException:
        client.stop()
        raise
    return front, client


def make_front(
    config: EngineConfig, registry: Registry, source: ModelSource, renderer: Renderer, info: WorkerInfo
) -> Front:
    """Return the front of an engine that has started."""
    eos, tokenizer = source.eos_token_ids, renderer.tokenizer
    if not eos and tokenizer is not None and tokenizer.eos_token_id is not None:
        eos = (tokenizer.eos_token_id,)
    renderer.encoder = info.encoder
    runner: Runner = load(registry, "runners", config.model.runner)(registry)
    limits = ModelLimits(info.vocab_size, context_length(config), config.model.max_logprobs, eos, runner.generates)
    processors = [registry.load(registered) for registered in logits_processors(config, registry)]
    extensions = registry.admission_extensions(config)
    read = partial(runner.admit, info.pooling)
    admission = Admission(limits, tokenizer, processors, config.model.seed, extensions, read)
    return Front(config, registry, source, renderer, admission, info, runner)


def load_text(config: EngineConfig, registry: Registry, source: ModelSource) -> Renderer:
    """Load tokenizer and chat renderer; either may be absent."""
    if config.model.skip_tokenizer_init:
        return Renderer(None, None)
    mode = config.model.tokenizer_mode
    tokenizer = load(registry, "tokenizers", source.tokenizer if mode == "auto" else mode)(source, config)
    chat: ChatRenderer | None = None
    if tokenizer is not None and registry.entries("chat_renderers"):
        chat = load(registry, "chat_renderers", "auto")(tokenizer, source, config)
    return Renderer(tokenizer, chat)


def load_sinks(config: EngineConfig, registry: Registry) -> Sinks:
    """Load the metric sinks, unless they are switched off."""
    if config.observability.disable_log_stats:
        return Sinks()
    guarded = []
    for registered in registry.entries("metric_sinks"):
        sink = registry.load(registered)(config)
        guarded.append(Guarded(registered.entry.name, str(registered.plugin), sink))
    return Sinks(guarded)


def served_names(config: EngineConfig) -> Sequence[str]:
    """Return the names the model answers to; the first is the one shown."""
    name = config.model.model
    return config.model.served_model_name or [name.rstrip("/") if os.path.isdir(name) else name]
