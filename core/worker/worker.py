"""The worker: the model, KV cache and batch of one device, driven by step
plans.

Knows no queue, no text and no feature. A step has a host part, done when `execute`
returns, and device work in stream order. While the device computes one step, the host
prepares the next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain, takewhile
from typing import Any, TypeVar, cast

import torch

from core.config import EngineConfig
from core.contracts.attention import AttentionBackend, ForwardBatch
from core.contracts.models import Model, ModelSource
from core.contracts.platforms import Platform
from core.contracts.runners import Runner, Stage, StageParts
from core.contracts.workers import Join, LoadedParts, WorkerParts
from core.errors import run_all
from core.model_spec.kv import KVLayout, RecurrentState
from core.model_spec.parallel import ParallelGroup, Pipeline
from core.models.layers.kv_cache import make_caches
from core.models.layers.loading import attention_facts, load_model, read_model, weight_bytes
from core.models.layers.state import prepare, with_spare_blocks
from core.plugin import Registry
from core.plugin.call_timer import call_timer
from core.plugin.entry import construct
from core.step import StepPlan, StepResult, WorkerInfo
from core.worker.batch import InputBatch
from core.worker.extensions import Extensions
from core.worker.inputs import DraftCorrection
from core.worker.result import PendingResult
from core.worker.step_runner import StepRunner
from core.worker.stream import Launched, SyncStream, ThreadStream

T = TypeVar("T")
log = logging.getLogger(__name__)
MAX_SPECULATIVE_ROWS = 16
"""Rows of a model with recurrent states that may use their maximum of draft
tokens at once.
"""


class Step:
    """A launched step."""

    def __init__(self, work: Launched) -> None:
        self._work = work

    def get(self) -> StepResult:
        """Wait for the device; return the step's result or raise its
        exception.
        """
        return cast("PendingResult", self._work.result()).get()


class Worker:
    """Builds a model, holds its KV cache and batch, and executes plans in order."""

    def __init__(
        self,
        config: EngineConfig,
        registry: Registry,
        source: ModelSource,
        join: Join | None = None,
    ) -> None:
        """Create a worker; without `join` it holds the whole model."""
        self.depth = config.parallel.pipeline_parallel_size
        if config.scheduler.async_scheduling:
            self.depth += 1
        """Steps that may be launched and not yet read."""
        self.on_message: Callable[[str, bytes], None] = lambda name, data: None
        """Callback, from any thread, for payloads of worker halves outside of
        steps.
        """
        self._config = config
        self._registry = registry
        self._source = source
        self._join = join or (lambda platform: (ParallelGroup(), Pipeline()))
        self._stream: Any = SyncStream()
        self._in_flight: deque[tuple[DraftCorrection | None, Launched]] = deque()
        self.model: Model
        self._batch: InputBatch
        self._steps: StepRunner
        self._extensions = Extensions(registry.runner_extensions(config))

    @property
    def reports(self) -> bool:
        """Whether all ranks' results are needed: a worker half may return payloads."""
        return self._extensions.returns_payloads

    # --- start --------------------------------------------------------------

    def start(self) -> WorkerInfo:
        """Build and load the model. Raises `ModelError` or `ConfigError`."""
        registry = self._registry
        config = self._config
        self._spec, chosen_runner = read_model(config, self._source, registry)
        self._runner: Runner = registry.make(chosen_runner, registry)[0]
        platform: Platform = registry.load(registry.choose("platforms", config.device.device))()
        self._platform = platform
        platform.start(config)
        self._device = platform.device
        if hasattr(platform, "stream"):
            self._stream = platform.stream()
        elif self.depth > 1:
            self._stream = ThreadStream()
        backend = self._choose_backend(platform)
        self._run_in_order(self._load)
        log.info("attention backend %s on %s", backend, platform.name)
        if hasattr(platform, "profile"):
            parts = config, self._layers, self._run_alone
            self._run_in_order(partial(platform.profile, *parts))
        num_bytes = weight_bytes(self.model)
        return WorkerInfo(
            layers=self._layers,
            kv_memory_bytes=platform.kv_memory_bytes(config, num_bytes),
            vocab_size=self.model.vocab_size,
            weight_bytes=num_bytes,
            device=self._device,
            pooling=self._runner.pooling_info(self._spec),
            shortened_by=getattr(self._spec, "shortened_by", ""),
            facts=dict(getattr(self.model, "facts", {})),
        )

    def _choose_backend(self, platform: Platform) -> str:
        """Construct the attention backend; return its name."""
        config = self._config
        facts = {
            **platform.facts(),
            "dtype": config.model.dtype,
            **attention_facts(self._spec, config),
        }
        requested = config.attention.attention_backend
        backend = self._registry.choose("attention_backends", requested, facts)
        target = self._registry.load(backend)
        self._backend: AttentionBackend = construct(target, config)
        return backend.entry.name

    def _run_in_order(self, function: Callable[[], T]) -> T:
        """Call a function on the device's stream; OpenMP has threads per caller."""
        work = self._stream.launch(torch.inference_mode()(function))
        result: T = work.result()
        return result

    def _load(self) -> None:
        config = self._config
        facts = self._platform.facts()
        self._group, self._pipeline = self._join(self._platform)
        self.model, context = load_model(
            config,
            self._source,
            self._registry,
            device=self._device,
            dtype=getattr(torch, config.model.dtype),
            attention=self._backend,
            group=self._group,
            pipeline=self._pipeline,
            facts=facts,
        )
        self._ops = context.ops
        extensions = self._extensions
        loaded = LoadedParts(config, self._source, self.model, context, facts)
        self._added = extensions.loaded(loaded)
        rows = min(config.scheduler.max_num_seqs or 1, MAX_SPECULATIVE_ROWS)
        layers = [*self.model.kv_layers, *chain.from_iterable(self._added.values())]
        spare_states = extensions.max_draft_tokens * rows
        self._layers = with_spare_blocks(layers, spare_states, extensions.spare_blocks)

    def allocate(self, layout: KVLayout, first_layer: int = 0) -> None:
        """Allocate the KV cache and the batch; then plans can be executed.

        `first_layer` is the layout's index of this stage's first caching layer.
        """
        self._run_in_order(partial(self._allocate, layout, first_layer))

    def _allocate(self, layout: KVLayout, first_layer: int) -> None:
        config = self._config
        platform = self._platform
        own = range(first_layer, first_layer + len(self._layers))
        caches, memory = make_caches(layout, self._backend, own, platform)
        self.model.bind_kv(caches[: len(self.model.kv_layers)])
        groups = {layer: i for i, group in enumerate(layout.groups) for layer in group.layers}
        group_of_layer = [groups[layer] for layer in own]
        states = [
            (group, cache)
            for group, cache in zip(group_of_layer, caches, strict=True)
            if isinstance(layout.groups[group].spec, RecurrentState)
        ]
        sizes = platform.sizes(config) if hasattr(platform, "sizes") else ()
        self._batch = InputBatch(
            config.scheduler.max_num_seqs or 1,
            config.model.max_model_len or 1,
            layout,
            self._device,
            depth=self.depth,
            sizes=sizes,
        )
        stage_parts = StageParts(
            config,
            self._spec,
            self.model,
            self._batch,
            self._extensions,
            self._pipeline.is_last,
            self._device,
            PendingResult,
            self._ops,
            self._source.hf_config,
        )
        stage: Stage = self._runner.stage(stage_parts)
        wrap = getattr(platform, "wrap", lambda model, sizes: model)
        forward: Callable[[ForwardBatch], torch.Tensor] = wrap(self.model, sizes)
        model_plugin = self._registry.in_use("models")[0].plugin.name
        self._steps = StepRunner(
            self._batch,
            stage,
            self._extensions,
            call_timer(self._registry).timed(model_plugin, forward),
            self._backend,
            partial(prepare, self._backend, self._ops),
            self._pipeline,
            self._device,
            group_of_layer,
            states,
        )
        self._attach_extensions(layout, memory, caches, partial(wrap, sizes=()))

    def _run_alone(self, layout: KVLayout, plan: StepPlan) -> None:
        """Run a step without worker halves, on caches of its own."""
        halves = self._extensions
        self._extensions = Extensions(())
        try:
            self._allocate(layout, 0)
            inputs = self._batch.prepare(plan)
            self._steps.run(plan, inputs).get()
            del self._batch, self._steps
        finally:
            self._extensions = halves

    def _attach_extensions(
        self, layout: KVLayout, memory: Any, caches: list[Any], wrap: Callable[..., Any]
    ) -> None:
        """Give each worker half the worker's parts and its own layers' caches."""
        added = self._added

        def parts_of(name: str) -> WorkerParts:
            before = takewhile(lambda other: other != name, added)
            num_before = sum(len(added[other]) for other in before)
            first = len(self.model.kv_layers) + num_before
            return WorkerParts(
                self._config,
                self.model,
                self._batch,
                layout,
                memory,
                caches[first : first + len(added.get(name, ()))],
                first,
                self._group,
                self._pipeline,
                self._device,
                lambda data: self.on_message(name, data),
                wrap,
            )

        self._extensions.attach(parts_of)

    # --- steps --------------------------------------------------------------

    def execute(self, plan: StepPlan) -> Step:
        """Prepare and launch one step; waits only while `depth` steps are in flight."""
        self._apply_corrections()
        inputs = self._batch.prepare(plan)
        work = self._stream.launch(partial(self._steps.run, plan, inputs))
        self._in_flight.append((inputs.correction, work))
        return Step(work)

    def _apply_corrections(self) -> None:
        """Correct the rows' positions by the accepted draft tokens of
        finished steps.
        """
        must_wait = self._batch.has_draft_steps and self._steps.needs_exact_positions
        while self._in_flight and (must_wait or len(self._in_flight) >= self.depth):
            correction, work = self._in_flight.popleft()
            try:
                accepted = work.result().num_accepted()
            except Exception:  # noqa: BLE001 - raised again by `Step.get`
                accepted = None
            if correction is not None:
                self._batch.correct(correction, accepted)

    # --- other calls --------------------------------------------------------

    def call(self, name: str, data: bytes) -> bytes | None:
        """Return a worker half's answer to `feature.verb`, between two steps."""
        return self._run_in_order(partial(self._extensions.call, name, data))

    def close(self) -> None:
        """Stop the device thread and close the worker halves; safe to call twice."""
        close_stream = getattr(self._stream, "close", lambda: None)
        run_all((self._extensions.close, close_stream))
