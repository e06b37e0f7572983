"""The worker: one device's model, cache and batch, driven by plans. Knows no queue, no text and no
feature.

A step has a part of the host, which is done when `execute` returns, and a part that the device does
in its own order; the latter may be that of the step before while the host works out the next.
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
from core.contracts import (
    AttentionBackend,
    ForwardBatch,
    Model,
    ModelSource,
    Platform,
    Runner,
    Stage,
    StageParts,
)
from core.contracts.construct import construct
from core.contracts.scheduling import LoadedParts, WorkerParts
from core.contracts.times import times_of
from core.contracts.workers import Join
from core.errors import LastStageFailed, make_all
from core.model_spec.kv import KVLayout, RecurrentState
from core.models.layers.caches import make_caches
from core.models.layers.loading import attention_facts, load_model, read_model, weight_bytes
from core.models.layers.parallel import ParallelGroup, Pipeline
from core.models.layers.state import prepare, with_spare
from core.plugin import Registry
from core.step import StepPlan, StepResult, WorkerInfo
from core.worker.batch import Batch
from core.worker.extensions import Extensions
from core.worker.inputs import Ahead, StepInputs
from core.worker.result import PendingResult
from core.worker.stream import Beside, Inline, Launched

T = TypeVar("T")
log = logging.getLogger(__name__)
MOST_GUESSING_ROWS = 16
"""Of a model with states: so many rows may guess as much as they like in one step."""


class Step:
    """A step that was launched."""

    def __init__(self, work: Launched) -> None:
        self._work = work

    def get(self) -> StepResult:
        """Wait for the device; return the step's result, or raise what it raised."""
        return cast("PendingResult", self._work.result()).get()


class Worker:
    """Builds a model, holds its cache and batch, and executes plans in the order they come."""

    def __init__(
        self,
        config: EngineConfig,
        registry: Registry,
        source: ModelSource,
        join: Join | None = None,
    ) -> None:
        """Without `join`, the worker holds the whole model."""
        self.depth = 2 if config.scheduler.async_scheduling else 1
        """Steps that may be launched and not read."""
        self.told: Callable[[str, bytes], None] = lambda name, data: None
        """Called, from any thread, with what a worker half tells its scheduler half outside of
        steps.
        """
        self._config = config
        self._registry = registry
        self._source = source
        self._join = join or (lambda platform: (ParallelGroup(), Pipeline()))
        self._stream: Any = Inline()
        self._in_flight: deque[tuple[Ahead | None, Launched]] = deque()
        self.model: Model
        self._batch: Batch
        self._extensions = Extensions(registry.runner_extensions(config))

    @property
    def reports(self) -> bool:
        """Say whether some feature's half may answer steps, so that the results of all ranks count."""
        return self._extensions.answers

    def start(self) -> WorkerInfo:
        """Build and fill the model. Raises `ModelError` or `ConfigError` with one clear block."""
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
            self._stream = Beside()
        facts = {
            **platform.facts(),
            "dtype": config.model.dtype,
            **attention_facts(self._spec, config),
        }
        backend = registry.choose("attention_backends", config.attention.attention_backend, facts)
        self._backend: AttentionBackend = construct(registry.load(backend), config)
        self._in_order(self._load)
        log.info("attention backend %s on %s", backend.entry.name, platform.name)
        num_bytes = weight_bytes(self.model)
        return WorkerInfo(
            layers=self._layers,
            kv_memory_bytes=platform.kv_memory_bytes(config, num_bytes),
            vocab_size=self.model.vocab_size,
            weight_bytes=num_bytes,
            device=self._device,
            pooling=self._runner.info(self._spec),
            shortened_by=getattr(self._spec, "shortened_by", ""),
            facts=dict(getattr(self.model, "facts", {})),
        )

    def _in_order(self, function: Callable[[], T]) -> T:
        """Call a function in the order of the device's work, and in its thread: OpenMP keeps
        threads for each caller.
        """
        result: T = self._stream.launch(torch.inference_mode()(function)).result()
        return result

    def _load(self) -> None:
        self._group, self._pipeline = self._join(self._platform)
        self.model, context = load_model(
            self._config,
            self._source,
            self._registry,
            device=self._device,
            dtype=getattr(torch, self._config.model.dtype),
            attention=self._backend,
            group=self._group,
            pipeline=self._pipeline,
            facts=(facts := self._platform.facts()),
        )
        self._ops = context.ops
        self._added = self._extensions.loaded(
            LoadedParts(self._config, self._source, self.model, context, facts)
        )
        guessing_rows = min(self._config.scheduler.max_num_seqs or 1, MOST_GUESSING_ROWS)
        layers = [*self.model.kv_layers, *chain.from_iterable(self._added.values())]
        self._layers = with_spare(
            layers, self._extensions.most_guesses * guessing_rows, self._extensions.spare_blocks
        )

    def allocate(self, layout: KVLayout, first_layer: int = 0) -> None:
        """Make the cache and the batch; after this, plans can be executed.

        `first_layer` is the index in the layout of this stage's first caching layer.
        """
        self._in_order(partial(self._allocate, layout, first_layer))

    def _allocate(self, layout: KVLayout, first_layer: int) -> None:
        own = range(first_layer, first_layer + len(self._layers))
        extensions = self._extensions
        config = self._config
        caches, memory = make_caches(layout, self._backend, own, self._platform)
        self.model.bind_kv(caches[: len(self.model.kv_layers)])
        groups = {
            layer: index for index, group in enumerate(layout.groups) for layer in group.layers
        }
        self._group_of_layer = [groups[layer] for layer in own]
        places = zip(self._group_of_layer, caches, strict=True)
        self._states = [
            (at, states)
            for at, states in places
            if isinstance(layout.groups[at].spec, RecurrentState)
        ]
        sizes = self._platform.sizes(config) if hasattr(self._platform, "sizes") else ()
        max_num_seqs = config.scheduler.max_num_seqs or 1
        max_model_len = config.model.max_model_len or 1
        batch = Batch(
            max_num_seqs, max_model_len, layout, self._device, depth=self.depth, sizes=sizes
        )
        self._batch = batch
        is_last = self._pipeline.is_last
        device = self._device
        self._stage: Stage = self._runner.stage(
            StageParts(
                config,
                self._spec,
                self.model,
                batch,
                extensions,
                is_last,
                device,
                PendingResult,
                self._ops,
            )
        )
        wrap = getattr(self._platform, "wrap", lambda model, sizes: model)
        forward: Callable[[ForwardBatch], torch.Tensor] = wrap(self.model, sizes)
        self._forward = times_of(self._registry).timed(
            self._registry.in_use("models")[0].plugin.name, forward
        )

        def parts_of(name: str) -> WorkerParts:
            before = takewhile(lambda other: other != name, self._added)
            first = len(self.model.kv_layers) + sum(len(self._added[other]) for other in before)
            mine = caches[first : first + len(self._added.get(name, ()))]
            where = (
                self._group,
                self._pipeline,
                device,
                lambda data: self.told(name, data),
                partial(wrap, sizes=()),
            )
            return WorkerParts(config, self.model, batch, layout, memory, mine, first, *where)

        extensions.attach(parts_of)

    def execute(self, plan: StepPlan) -> Step:
        """Work out one step and launch it.

        Nothing is waited for, but that no more than `depth` steps are under way.
        """
        self._settle()
        inputs = self._batch.take(plan)
        work = self._stream.launch(partial(self._run, plan, inputs))
        self._in_flight.append((inputs.ahead, work))
        return Step(work)

    def _settle(self) -> None:
        """Take note of how far rows have come in steps that are over."""
        certain = self._batch.is_guessing and (
            self._states or not getattr(self._backend, "device_lengths", False)
        )
        while self._in_flight and (certain or len(self._in_flight) >= self.depth):
            ahead, work = self._in_flight.popleft()
            try:
                counts = work.result().counts()
            except Exception:  # noqa: BLE001 - whoever wants the step's result is told
                counts = None
            if ahead is not None:
                self._batch.settle(ahead, counts)

    @torch.inference_mode()
    def _run(self, plan: StepPlan, inputs: StepInputs) -> PendingResult:
        """Do the device's part of a step. Nothing is read back."""
        errors = self._enter(plan, inputs)
        num_rows = len(plan.steady) + len(plan.samples)
        self._batch.keeps_ends = self._extensions.begin(num_rows, plan.payloads)
        pending = (
            self._compute(plan, inputs, errors) if inputs.rows else PendingResult(plan.step, errors)
        )
        pending.payloads = self._extensions.after_sample(plan.payloads)
        pending.leave()
        return pending

    def _compute(self, plan: StepPlan, inputs: StepInputs, errors: dict[int, str]) -> PendingResult:
        batch = self._forward_batch(inputs)
        self._extensions.before_forward(batch, plan.payloads)
        hidden = self._forward(batch)[: inputs.num_tokens]
        self._extensions.after_forward(batch, hidden, plan.payloads)
        sample = cast(
            "Callable[[], PendingResult]", partial(self._stage.run, plan, inputs, hidden, errors)
        )
        pending = (
            sample() if self._pipeline.size == 1 else self._across_stages(plan.step, inputs, sample)
        )
        if pending.accepted is not None:
            for group, states in self._states:
                inputs.groups[group].keep(pending.accepted, states)
        return pending

    def _forward_batch(self, inputs: StepInputs) -> ForwardBatch:
        groups = self._batch.gather(inputs)
        padding = inputs.padding
        prepared = {
            group: prepare(self._backend, groups[group]) for group in set(self._group_of_layer)
        }
        types = self._stage.token_types(inputs) if inputs.rows else None
        if padding and types is not None:
            types = torch.nn.functional.pad(types, (0, padding))
        return ForwardBatch(
            input_ids=inputs.input_ids,
            positions=inputs.at("positions"),
            attention=[prepared[group] for group in self._group_of_layer],
            rows=inputs.row_index.tolist() if padding else inputs.rows,
            starts=inputs.row_starts.tolist() if padding else inputs.starts,
            counts=inputs.row_counts.tolist() if padding else inputs.counts,
            prompt_lens=self._batch.columns.prompt_lens[inputs.row_index].tolist(),
            token_ids=self._batch.token_ids,
            token_types=types,
            entering=inputs.beside,
        )

    def _across_stages(
        self, step: int, inputs: StepInputs, sample: Callable[[], PendingResult]
    ) -> PendingResult:
        """Sample on the last stage.

        The others take its tokens, which the next step reads, or fail as it does.
        """
        pending = PendingResult(step=step, errors={})
        num_points = len(inputs.point_rows)
        num_rows = 0 if inputs.guesses is None else len(inputs.guesses)
        message = torch.zeros(1 + num_points + num_rows, dtype=torch.int64, device=self._device)
        if self._pipeline.is_last:
            try:
                pending = sample()
                message[0] = 1
                if pending.tokens is not None:
                    message[1 : 1 + num_points] = pending.tokens
                if pending.accepted is not None:
                    message[1 + num_points :] = pending.accepted
            finally:
                self._pipeline.from_last(message)
        elif not self._pipeline.from_last(message)[0]:
            raise LastStageFailed
        elif inputs.samples:
            if num_rows:
                inputs.accepted = pending.accepted = message[1 + num_points :]
            pending.rows = inputs.point_rows
            pending.points = inputs.points
            pending.tokens = message[1 : 1 + num_points]
            self._stage.take(inputs, pending.tokens)
        return pending

    def _enter(self, plan: StepPlan, inputs: StepInputs) -> dict[int, str]:
        """Apply the plan's differences; return the rows whose request failed on entering."""
        for row in plan.ended:
            self._stage.removed(row)
        self._batch.enter(inputs)
        errors = {}
        for new in plan.new:
            error = self._stage.added(new)
            if error is not None:
                errors[new.row] = error
        return errors

    def dummy(self, num_tokens: int) -> None:
        """Run the model without requests, on so many sequences of one token.

        Touches no block but padding's.
        """
        inputs = self._batch.take(StepPlan(-1, [], [], [], [], [], [], []), num_tokens)

        def run() -> None:
            self._batch.enter(inputs)
            self._forward(self._forward_batch(inputs))

        self._in_order(run)

    def call(self, name: str, data: bytes) -> bytes | None:
        """Let the worker half that a call names answer it, between steps."""
        return self._in_order(partial(self._extensions.call, name, data))

    def close(self) -> None:
        """Let the device's thread end, where there is one, and what works for features; safe to
        call twice.
        """
        make_all((self._extensions.close, getattr(self._stream, "close", lambda: None)))
