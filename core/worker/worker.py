"""The worker: one device's model, cache and batch, driven by plans. Knows no queue, no text and no feature."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from core.config import EngineConfig
from core.contracts import AttentionBackend, ForwardBatch, Model, ModelSource, Platform, Runner, Stage, StageParts
from core.errors import EngineError
from core.kv_spec import KVLayout, RecurrentState
from core.latent_spec import LatentAttentionSpec
from core.model_spec import DecoderSpec
from core.nn.parallel import ParallelGroup, Pipeline
from core.nn.state import LayerCache, prepare, state_views
from core.plugin import Registered, Registry
from core.step import StepPlan, WorkerInfo
from core.worker.batch import Batch, StepInputs
from core.worker.extensions import Extensions
from core.worker.loading import load_model, read_model
from core.worker.result import PendingResult

log = logging.getLogger(__name__)

Join = Callable[["Platform"], tuple[ParallelGroup, Pipeline]]
"""Returns this rank's place among those that hold the model, once the others are there."""


class LastStageFailed(EngineError):
    """A step that went well here, but not on the stage that samples."""


class Worker:
    """Builds a model, holds its cache and batch, and executes plans in the order they come."""

    def __init__(self, config: EngineConfig, registry: Registry, source: ModelSource, join: Join | None = None) -> None:
        """Without `join`, the worker holds the whole model."""
        self._config = config
        self._registry = registry
        self._source = source
        self._join = join or (lambda platform: (ParallelGroup(), Pipeline()))
        self._pipeline: Pipeline
        self._model: Model
        self._backend: AttentionBackend
        self._platform: Platform
        self._device = "cpu"
        self._batch: Batch
        self._runner: Runner
        self._stage: Stage
        self._extensions = Extensions(registry.runner_extensions(config))

    def start(self) -> WorkerInfo:
        """Build and fill the model. Raises `ModelError` or `ConfigError` with one clear block."""
        registry, config = self._registry, self._config
        self._spec, chosen_runner = read_model(config, self._source, registry)
        self._runner, _ = registry.make(chosen_runner, registry)
        chosen_platform = registry.choose("platforms", config.device.device)
        platform: Platform = registry.load(chosen_platform)()
        self._platform = platform
        platform.start(config)
        self._device = platform.device
        chosen_backend = self._choose_backend(platform)
        self._backend = registry.load(chosen_backend)()
        group, self._pipeline = self._join(platform)
        with torch.inference_mode():
            self._model = load_model(
                config,
                self._source,
                registry,
                device=self._device,
                dtype=getattr(torch, config.model.dtype),
                attention=self._backend,
                group=group,
                pipeline=self._pipeline,
                facts=platform.facts(),
            )
        log.info("attention backend %s on %s", chosen_backend.entry.name, platform.name)
        weight_bytes = _weight_bytes(self._model)
        return WorkerInfo(
            layers=list(self._model.kv_layers),
            kv_memory_bytes=platform.kv_memory_bytes(config, weight_bytes),
            vocab_size=self._model.vocab_size,
            weight_bytes=weight_bytes,
            device=self._device,
            pooling=self._runner.info(self._spec),
            encoder=getattr(self._model, "encoder_facts", None),
        )

    def _choose_backend(self, platform: Platform) -> Registered:
        facts = {**platform.facts(), "dtype": self._config.model.dtype, **_attention_facts(self._spec)}
        return self._registry.choose("attention_backends", self._config.attention.attention_backend, facts)

    def allocate(self, layout: KVLayout, first_layer: int = 0) -> None:
        """Make the cache and the batch; after this, plans can be executed.

        `first_layer` is the index in the layout of this stage's first caching layer.
        """
        own = range(first_layer, first_layer + len(self._model.kv_layers))
        self._model.bind_kv(_make_caches(layout, self._backend, own, self._platform))
        groups = {layer: index for index, group in enumerate(layout.groups) for layer in group.layers}
        self._group_of_layer = [groups[layer] for layer in own]
        max_num_seqs = self._config.scheduler.max_num_seqs or 1
        max_model_len = self._config.model.max_model_len or 1
        self._batch = Batch(max_num_seqs, max_model_len, layout, self._device)
        batch, extensions, is_last = self._batch, self._extensions, self._pipeline.is_last
        parts = StageParts(
            self._config, self._spec, self._model, batch, extensions, is_last, self._device, PendingResult
        )
        self._stage = self._runner.stage(parts)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> PendingResult:
        """Run one step. Nothing is copied back here; `PendingResult.get` does that, once."""
        errors = self._enter(plan)
        if not (plan.rows or plan.steady):
            return PendingResult(step=plan.step, errors=errors)
        inputs = self._batch.inputs(plan)
        prepared = {group: prepare(self._backend, inputs.groups[group]) for group in set(self._group_of_layer)}
        batch = ForwardBatch(
            input_ids=inputs.input_ids,
            positions=inputs.positions,
            attention=[prepared[group] for group in self._group_of_layer],
            rows=inputs.rows,
            starts=inputs.starts,
            counts=inputs.counts,
            prompt_lens=[self._batch.prompt_lens[row] for row in inputs.rows],
            token_ids=self._batch.token_ids,
            token_types=self._stage.token_types(inputs),
            encoder_inputs=inputs.encoder_inputs,
        )
        self._extensions.before_forward(batch, plan.payloads)
        hidden = self._model(batch)
        if self._pipeline.size == 1:
            return self._stage.run(plan, inputs, hidden, errors)
        return self._across_stages(plan.step, inputs, lambda: self._stage.run(plan, inputs, hidden, errors))

    def _across_stages(self, step: int, inputs: StepInputs, sample: Callable[[], PendingResult]) -> PendingResult:
        """Sample on the last stage. The others take its tokens, which the next step reads, or fail as it does."""
        pending = PendingResult(step=step, errors={})
        message = torch.zeros(1 + len(inputs.samples), dtype=torch.int64, device=self._device)
        if self._pipeline.is_last:
            try:
                pending = sample()
                message[0] = 1
                if pending.tokens is not None:
                    message[1:] = pending.tokens
            finally:
                self._pipeline.from_last(message)
        elif not self._pipeline.from_last(message)[0]:
            raise LastStageFailed
        elif inputs.samples:
            self._stage.take(inputs, message[1:])
        return pending

    def _enter(self, plan: StepPlan) -> dict[int, str]:
        """Apply the plan's differences; return the rows whose request failed on entering."""
        for row in plan.ended:
            self._stage.removed(row)
        self._batch.apply(plan)
        errors = {}
        for new in plan.new:
            error = self._stage.added(new)
            if error is not None:
                errors[new.row] = error
        return errors


def _attention_facts(spec: Any) -> dict[str, Any]:
    """Return what an attention backend must be able to do for this model."""
    if not isinstance(spec, DecoderSpec):
        return {}
    layers = [layer.attention for layer in spec.layers if layer.attention is not None]
    own = [layer for layer in layers if layer.causal]  # others keep nothing, and attend without us

    def has(name: str) -> bool:
        return any(getattr(layer, name, None) for layer in own)

    return {
        **{name: has(name) for name in ("window", "chunk", "softcap", "alibi", "sinks")},
        "distance_bias": has("relative"),
        "head_size": sorted({layer.head_size for layer in own}),
        "latent": any(isinstance(layer, LatentAttentionSpec) for layer in own),
        "cross": spec.encoder is not None,
    }


def _weight_bytes(model: Any) -> int:
    """Return the bytes of all distinct parameters and buffers."""
    seen = {t.data_ptr(): t.nbytes for t in [*model.parameters(), *model.buffers()]}
    return sum(seen.values())


def _make_caches(layout: KVLayout, backend: AttentionBackend, own: range, platform: Platform) -> list[LayerCache]:
    """Return the cache of each layer of our own. Groups of one pool share its memory, slot by slot."""
    memory: dict[tuple[int, int], torch.Tensor] = {}
    caches: dict[int, LayerCache] = {}
    for group in layout.groups:
        pool, spec, size = layout.pools[group.pool], group.spec, group.block_size
        for slot, layer in enumerate(group.layers):
            if layer in own:
                if (group.pool, slot) not in memory:
                    memory[group.pool, slot] = platform.allocate(pool.num_blocks * pool.slot_bytes)
                raw = memory[group.pool, slot][: pool.num_blocks * spec.page_bytes(size)]
                if isinstance(spec, RecurrentState):
                    caches[layer] = state_views(raw, spec, pool.num_blocks)
                else:
                    shape = backend.cache_shape(spec, pool.num_blocks, size)
                    caches[layer] = raw.view(getattr(torch, spec.dtype)).view(shape)
    return [caches[layer] for layer in own]
