"""Says what memory a model will take before any of it is taken, by the decisions that a start
makes.

The model is built where tensors have shapes but no memory. Headers of weight files are read,
weights are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from core.contracts import BuildContext
from core.engine.memory import context_length, fit_memory
from core.engine.resolve import Resolved, resolve
from core.errors import ConfigError
from core.kv.layout import NULL_BLOCKS
from core.kv.reach import peak_blocks
from core.model_spec.decoder import DecoderSpec
from core.model_spec.kv import KVLayout, PoolLayout
from core.models.layers.decoder import Decoder
from core.models.layers.loading import check_cached, read_model
from core.models.layers.parallel import ParallelGroup, Pipeline
from core.models.layers.quantization import plain_weights, quant_method, tell_stored
from core.models.ops.table import reference_ops
from core.step import WorkerInfo

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts import Model, ModelSource
    from core.plugin import Registry

Headers = Callable[["ModelSource"], Iterable[tuple[str, torch.Tensor]] | None]
"""Returns name and shape (a tensor without memory) of a checkpoint's tensors; None where they are
not known.
"""

NOWHERE = "meta"
UNLIMITED = 1 << 62
TABLE_POSITIONS = 1024
"""Rotary tables are made for no more positions than this here: they belong to no weight, and would
take time.
"""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a start would take. Bytes are per rank, stage by stage, where they are a list."""

    config: EngineConfig
    """Without gaps. A context length that was left open is cut to what fits."""
    source: ModelSource
    weight_bytes: list[int]
    stored_bytes: int | None
    """Of all tensors in the checkpoint; None where its headers were not read."""
    kv_memory_bytes: int
    """For the KV cache of one rank of each stage: asked for, or what the platform gives."""
    free_bytes: int | None
    """What one rank may take of this machine; None where the platform does not say."""
    obstacle: str
    """Why no cache can be made, as a start would say it; empty when one can.

    The layout is the least one then.
    """
    layout: KVLayout
    kv_bytes: list[int]
    feature_bytes: dict[str, list[int]]
    """What features may take beside weights and cache, by their names."""

    @property
    def taken_bytes(self) -> list[int]:
        """All that each rank takes."""
        return [
            sum(each)
            for each in zip(
                self.weight_bytes, self.kv_bytes, *self.feature_bytes.values(), strict=True
            )
        ]

    @property
    def context_length(self) -> int:
        """Longest prompt and output together."""
        return context_length(self.config)

    @property
    def layout_bytes(self) -> int:
        """Bytes of the whole cache, of one rank of each stage."""
        return sum(pool.num_blocks * pool.block_bytes for pool in self.layout.pools)

    @property
    def short_bytes(self) -> int:
        """Bytes that are missing: for the least cache, or for weights and cache together; 0 when
        all fits.
        """
        missing = self.layout_bytes - self.kv_memory_bytes if self.obstacle else 0
        if self.free_bytes is not None:
            missing = max(missing, max(self.taken_bytes) - self.free_bytes)
        return max(missing, int(bool(self.obstacle)))

    def least_kv_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the smallest cache that holds one request of `num_tokens`."""
        needs = _needs(
            self.layout, num_tokens, self.config.scheduler.max_num_batched_tokens or num_tokens
        )
        pools = zip(self.layout.pools, needs, strict=True)
        return sum((need + NULL_BLOCKS) * pool.block_bytes for pool, need in pools)

    def requests_at_once(self, num_tokens: int) -> int:
        """Return how many requests of `num_tokens` run at once, one of them with a whole step being
        computed.
        """
        step = self.config.scheduler.max_num_batched_tokens or num_tokens
        first, more = (_needs(self.layout, num_tokens, size) for size in (step, 1))
        room = [pool.num_blocks - NULL_BLOCKS for pool in self.layout.pools]
        fits = [(have - one) // each + 1 for have, one, each in zip(room, first, more, strict=True)]
        return max(0, min([*fits, self.config.scheduler.max_num_seqs or 1]))


def memory_plan(
    config: EngineConfig,
    registry: Registry,
    *,
    serving: bool = True,
    headers: Headers | None = None,
) -> MemoryPlan:
    """Return what a start with this configuration would take.

    `headers` stand for those of local files. Raises what the start would raise for a model that
    cannot be served, tensors that are missing among the headers included, and for settings that
    exclude each other.
    """
    resolved = resolve(config, registry, serving=serving)
    config = resolved.config
    platform = resolved.platform
    infos, stored, features = _infos(resolved, registry, headers)
    info = WorkerInfo.combine(infos, config.parallel.tensor_parallel_size)
    obstacle = ""
    try:
        config, layout = fit_memory(config, info, cut_context=not resolved.context_is_chosen)
    except ConfigError as error:
        obstacle = str(error)
        layout = _least_layout(config, info)
    own = [
        _own_bytes(layout, layers) for layers in _ranks(infos, config.parallel.tensor_parallel_size)
    ]
    free: Callable[[EngineConfig], int] | None = getattr(platform, "free_memory_bytes", None)
    return MemoryPlan(
        config=config,
        source=resolved.source,
        weight_bytes=[info.weight_bytes for info in infos],
        stored_bytes=stored,
        kv_memory_bytes=config.cache.kv_cache_memory_bytes or info.kv_memory_bytes,
        free_bytes=None if free is None else free(config),
        obstacle=obstacle,
        layout=layout,
        kv_bytes=own,
        feature_bytes=features,
    )


def _infos(
    resolved: Resolved, registry: Registry, headers: Headers | None
) -> tuple[list[WorkerInfo], int | None, dict[str, list[int]]]:
    """Return what each rank's worker would tell, the bytes of the checkpoint, and what features
    take of each rank.
    """
    config = resolved.config
    source = resolved.source
    parallel = resolved.config.parallel
    infos: list[WorkerInfo] = []
    stored: int | None = None
    asked = {
        half.name: half.host_bytes
        for _, half in registry.runner_extensions(config)
        if hasattr(half, "host_bytes")
    }
    features: dict[str, list[int]] = {name: [] for name in asked}
    for stage in range(parallel.pipeline_parallel_size):
        pipeline = Pipeline(parallel.pipeline_parallel_size, stage)
        tensors = _headers(config, source, registry) if headers is None else headers(source)
        listed = None if tensors is None else list(tensors)
        model = _build(
            resolved, registry, ParallelGroup(parallel.tensor_parallel_size), pipeline, listed or ()
        )
        check_cached(model, config)
        if listed is not None and isinstance(
            model, Decoder
        ):  # other modules may look at what they load
            model.load_weights(listed)
            stored = sum(tensor.nbytes for _, tensor in listed)
        weight_bytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))  # type: ignore[attr-defined]
        info = WorkerInfo(
            layers=list(model.kv_layers),
            kv_memory_bytes=resolved.platform.kv_memory_bytes(config, weight_bytes),
            vocab_size=model.vocab_size,
            weight_bytes=weight_bytes,
        )
        infos += (
            [info] * parallel.tensor_parallel_size
        )  # the last one's missing rows of the vocabulary are filled up
        for name, host_bytes in asked.items():
            features[name] += [host_bytes(model, config)] * parallel.tensor_parallel_size
    return infos, stored, features


def _build(
    resolved: Resolved,
    registry: Registry,
    group: ParallelGroup,
    pipeline: Pipeline,
    stored: Iterable[tuple[str, torch.Tensor]],
) -> Model:
    """Return one rank's model without memory.

    Nothing computes with it: attention and ops are not looked at.
    """
    config = resolved.config
    source = resolved.source
    platform = resolved.platform
    facts = {**platform.facts(), "dtype": config.model.dtype}
    length = min(context_length(config), TABLE_POSITIONS)
    spec, _ = read_model(config, source, registry)
    attention: Any = None
    context = BuildContext(
        dtype=getattr(torch, config.model.dtype),
        device=NOWHERE,
        attention=attention,
        quant=quant_method(config, source, registry),
        ops=reference_ops(),
        group=group,
        pipeline=pipeline,
        conv_state_dtype=config.cache.mamba_cache_dtype,
        state_dtype=config.cache.mamba_ssm_cache_dtype,
        kv_dtype=config.cache.kv_cache_dtype,
        kv_scaled=config.cache.calculate_kv_scales,
        plain=plain_weights(config, registry, facts),
    )
    if isinstance(spec, DecoderSpec):
        tell_stored(context.quant, spec.names, stored)
        return Decoder(replace(spec, max_positions=length), context)
    return spec.build(context)


def _headers(
    config: EngineConfig, source: ModelSource, registry: Registry
) -> Iterable[tuple[str, torch.Tensor]] | None:
    """Return the tensors of the checkpoint, without their memory, as its own loader names them."""
    wanted = config.load.load_format
    chosen = registry.choose("weight_loaders", source.weight_loader if wanted == "auto" else wanted)
    loader = registry.load(chosen)(source, config)
    if hasattr(loader, "expect"):  # it makes its tensors up
        return None
    if hasattr(loader, "headers"):
        listed: Iterable[tuple[str, torch.Tensor]] = loader.headers()
        return listed
    return ((name, tensor.to(NOWHERE)) for name, tensor in loader.tensors())


def _least_layout(config: EngineConfig, info: WorkerInfo) -> KVLayout:
    """Return the smallest layout that holds one request of the longest context."""
    roomy = replace(config.cache, kv_cache_memory_bytes=UNLIMITED, num_gpu_blocks_override=None)
    layout = fit_memory(replace(config, cache=roomy), info, cut_context=False)[1]
    step = config.scheduler.max_num_batched_tokens or context_length(config)
    needs = _needs(layout, context_length(config), step)
    pools = zip(layout.pools, needs, strict=True)
    return KVLayout(
        groups=layout.groups,
        pools=[
            PoolLayout(need + NULL_BLOCKS, pool.slot_bytes, pool.num_slots) for pool, need in pools
        ],
        hash_block_size=layout.hash_block_size,
    )


def _needs(layout: KVLayout, num_tokens: int, step_tokens: int) -> list[int]:
    """Return how many blocks of each pool one request of so many tokens holds."""
    needs = [0] * len(layout.pools)
    for group in layout.groups:
        needs[group.pool] += peak_blocks(group.spec, group.block_size, num_tokens, step_tokens)
    return needs


def _ranks(infos: list[WorkerInfo], tensor: int) -> list[range]:
    """Return which caching layers each rank has."""
    out: list[range] = []
    start = 0
    for index, info in enumerate(infos):
        out.append(range(start, start + len(info.layers)))
        if index % tensor == tensor - 1:
            start += len(info.layers)
    return out


def _own_bytes(layout: KVLayout, own: range) -> int:
    """Return the bytes of the slots that these layers use."""
    held = {
        (group.pool, slot)
        for group in layout.groups
        for slot, layer in enumerate(group.layers)
        if layer in own
    }
    return sum(layout.pools[pool].num_blocks * layout.pools[pool].slot_bytes for pool, _ in held)
