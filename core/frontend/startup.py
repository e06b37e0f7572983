"""Starts an engine and builds its frontend. Knows no scheduler and
no worker.
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
from core.contracts.admission import AdmissionContext
from core.engine.build import build, load
from core.engine.memory import context_length
from core.engine.resolve import find_model, resolve
from core.frontend.admission import Admission, ModelLimits
from core.frontend.metrics import MetricSinks, SinkHealth
from core.frontend.text.rendering import Renderer
from core.plugin import Registry, load_named, load_plan, make_plan
from core.plugin.named_processors import logits_processors
from core.types.plugin_params import KnownNames

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts.clients import Client, Listener
    from core.contracts.models import ModelSource
    from core.contracts.runners import Runner
    from core.engine.loop import EngineCore
    from core.step import WorkerInfo


@dataclass(frozen=True, slots=True)
class Frontend:
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
        base: dict[str, Any] = {}
        if model.generation_config != "vllm":
            base = dict(self.source.sampling_defaults)
        return base | model.override_generation_config


def load_from_kwargs(kwargs: Mapping[str, Any]) -> tuple[EngineConfig, Registry]:
    """Return configuration and plugins for keywords of `LLM(...)`, without
    importing torch.
    """
    registry = load_plan(make_plan(*plugins_from_kwargs(kwargs)))
    config, registry = load_named(config_from_kwargs(kwargs, registry.options()), registry)
    if "log_level" in kwargs:  # as a library, change logging only on request
        logging.getLogger("core").setLevel(config.observability.log_level.upper())
    return config, registry


def start_in_process(config: EngineConfig, registry: Registry) -> tuple[Frontend, EngineCore]:
    """Start an engine in this process and thread, for the caller to step.

    Raises `EngineError` with one clear block when a model, plugin or setting is
    invalid.
    """
    registry.process_started("main")
    size = config.parallel.data_parallel_size
    registry.choose("clients", "thread", {"data_parallel_size": size})
    resolved = resolve(config, registry, serving=False)
    with ThreadPoolExecutor(1) as pool:
        # The tokenizer loads in parallel with the weights: both mostly release the GIL.
        text = pool.submit(load_text, resolved.config, registry, resolved.source)
        built = build(resolved, registry)
        try:
            frontend = make_frontend(
                built.config, registry, resolved.source, text.result(), built.info
            )
            registry.check_combination()
        except BaseException:
            built.core.shutdown()
            raise
    return frontend, built.core


def connect(
    config: EngineConfig, registry: Registry, listener: Listener, meanwhile: Callable[[], None]
) -> tuple[Frontend, Client]:
    """Start an engine through the best client; call `meanwhile` while it
    starts.

    Raises like `start_in_process`.
    """
    registry.process_started("main")
    name = "thread" if config.service.disable_frontend_multiprocessing else "auto"
    size = config.parallel.data_parallel_size
    make: Any = load(registry, "clients", name, data_parallel_size=size)
    client: Client = make(config, registry, listener)
    try:
        source = find_model(config, registry)
        renderer = load_text(config, registry, source)
        meanwhile()
        running = client.wait()
        frontend = make_frontend(running.config, registry, source, renderer, running.info)
        registry.check_combination()
    except BaseException:
        client.stop()
        raise
    return frontend, client


def make_frontend(
    config: EngineConfig,
    registry: Registry,
    source: ModelSource,
    renderer: Renderer,
    info: WorkerInfo,
) -> Frontend:
    """Return the frontend of an engine that has started."""
    eos = source.eos_token_ids
    tokenizer = renderer.tokenizer
    if not eos and tokenizer is not None and tokenizer.eos_token_id is not None:
        eos = (tokenizer.eos_token_id,)
    runner: Runner = load(registry, "runners", config.model.runner)(registry)
    limits = ModelLimits(
        vocab_size=info.vocab_size,
        max_model_len=context_length(config),
        max_logprobs=config.model.max_logprobs,
        eos_token_ids=eos,
        generates=runner.generates,
        shortened_by=f" ({info.shortened_by})" if info.shortened_by else "",
    )
    processors = [registry.load(registered) for registered in logits_processors(config, registry)]
    context = AdmissionContext(
        info.facts, renderer.prompt, tokenizer, limits.vocab_size, limits.max_model_len
    )
    extensions = registry.admission_extensions(config, context)
    renderer.keys = KnownNames.collect((each for _, each in extensions), "prompt_keys")
    read_params = partial(runner.read_params, info.pooling)
    admission = Admission(limits, tokenizer, processors, config.model.seed, extensions, read_params)
    return Frontend(config, registry, source, renderer, admission, info, runner)


def load_text(config: EngineConfig, registry: Registry, source: ModelSource) -> Renderer:
    """Load tokenizer and chat renderer; either may be absent."""
    if config.model.skip_tokenizer_init:
        return Renderer(None, None)
    mode = config.model.tokenizer_mode
    name = (source.tokenizer or mode) if mode == "auto" else mode
    encoding = registry.choose("tokenizers", name)
    tokenizer = registry.load(encoding)(source, config)
    chat = None
    if tokenizer is not None and registry.entries("chat_renderers"):
        chosen = registry.choose("chat_renderers")
        chat = registry.make(chosen, tokenizer, source, config)[0]
    return Renderer(tokenizer, chat, registry.blame(encoding))


def load_sinks(config: EngineConfig, registry: Registry) -> MetricSinks:
    """Load the metric sinks, unless they are disabled."""
    if config.observability.disable_log_stats:
        return MetricSinks()
    return MetricSinks(
        [
            SinkHealth(each.entry.name, str(each.plugin), registry.make(each, config)[0])
            for each in registry.entries("metric_sinks")
        ]
    )


def served_names(config: EngineConfig) -> Sequence[str]:
    """Return the names of the model in requests; answers carry the
    first one.
    """
    name = config.model.model
    return config.model.served_model_name or [name.rstrip("/") if os.path.isdir(name) else name]
