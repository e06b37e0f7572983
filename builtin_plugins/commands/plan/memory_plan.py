"""Computes the memory of a model before allocation, with the decisions of a start.

The model is built on the meta device. Headers of weight files are read; weights are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from builtin_plugins.executors.api import layer_partition
from core.api import ConfigError
from core.api.execution import WorkerInfo
from core.api.models import BuildContext
from core.api.planning import (
    NULL_BLOCKS,
    Resolved,
    context_length,
    fit_memory,
    peak_blocks,
    resolve,
)
from core.model_spec.decoder import DecoderSpec
from core.model_spec.kv import KVLayout, PoolLayout
from core.model_spec.parallel import ParallelGroup, Pipeline
from core.models.dtypes import dtype_name
from core.models.layers.decoder import Decoder
from core.models.layers.embedding import Embedding, Head
from core.models.layers.loading import check_cached, read_model
from core.models.layers.moe import Moe
from core.models.layers.quantization import pass_checkpoint_dtypes, plain_weights, quant_method
from core.models.ops.table import reference_ops

if TYPE_CHECKING:
    from core.api import EngineConfig
    from core.api.models import Model, ModelSource
    from core.api.plugins import LoadedRegistry

Headers = Callable[["ModelSource"], Iterable[tuple[str, torch.Tensor]] | None]
"""Returns (name, meta tensor) for a checkpoint's tensors; None if unknown."""

META = "meta"
UNLIMITED = 1 << 62
MAX_TABLE_POSITIONS = 1024
"""Maximum number of positions in rotary tables: they are no weights, and slow to compute."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory that a start takes. Lists of bytes have one item per rank, stage by stage."""

    config: EngineConfig
    """Configuration with all defaults resolved; an open context length is cut to what fits."""
    source: ModelSource
    weight_bytes: list[int]
    stored_bytes: int | None
    """Bytes of all tensors in the checkpoint; None if its headers were not read."""
    kv_memory_bytes: int
    """KV cache memory of one rank per stage in bytes: configured, or chosen by the platform."""
    free_bytes: int | None
    """Free memory for one rank in bytes; None if the platform does not report it."""
    obstacle: str
    """Error of the cache allocation; empty on success.

    With an error, `layout` is the minimal layout.
    """
    layout: KVLayout
    kv_bytes: list[int]
    feature_bytes: dict[str, list[int]]
    """Maximum additional bytes per rank, by feature name."""
    token_bytes: dict[str, int]
    """Bytes of weights that one token is multiplied with, all ranks, by dtype."""

    @property
    def taken_bytes(self) -> list[int]:
        """Total bytes per rank."""
        return [
            sum(each)
            for each in zip(
                self.weight_bytes, self.kv_bytes, *self.feature_bytes.values(), strict=True
            )
        ]

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of prompt and output together."""
        return context_length(self.config)

    @property
    def layout_bytes(self) -> int:
        """Bytes of the KV cache of one rank per stage."""
        return sum(pool.num_blocks * pool.block_bytes for pool in self.layout.pools)

    @property
    def short_bytes(self) -> int:
        """Missing bytes, for the minimal cache or for weights and cache; 0 when all fits."""
        missing = self.layout_bytes - self.kv_memory_bytes if self.obstacle else 0
        if self.free_bytes is not None:
            missing = max(missing, max(self.taken_bytes) - self.free_bytes)
        return max(missing, int(bool(self.obstacle)))

    def least_kv_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the minimal cache for one request of `num_tokens`."""
        needed = _needed_blocks(
            self.layout, num_tokens, self.config.scheduler.max_num_batched_tokens or num_tokens
        )
        pools = zip(self.layout.pools, needed, strict=True)
        return sum((need + NULL_BLOCKS) * pool.block_bytes for pool, need in pools)

    def requests_at_once(self, num_tokens: int) -> int:
        """Return how many requests of `num_tokens` run at once, one of them in prefill."""
        step = self.config.scheduler.max_num_batched_tokens or num_tokens
        prefill, decode = (_needed_blocks(self.layout, num_tokens, size) for size in (step, 1))
        free = [pool.num_blocks - NULL_BLOCKS for pool in self.layout.pools]
        fits = [
            (blocks - first) // each + 1
            for blocks, first, each in zip(free, prefill, decode, strict=True)
        ]
        return max(0, min([*fits, self.config.scheduler.max_num_seqs or 1]))


def memory_plan(
    config: EngineConfig,
    registry: LoadedRegistry,
    *,
    serving: bool = True,
    headers: Headers | None = None,
) -> MemoryPlan:
    """Return the memory that a start with this configuration takes.

    `headers` replaces the headers of local files. Raises the errors of the start: an unsupported
    model, missing tensors, conflicting settings.
    """
    resolved = resolve(config, registry, serving=serving)
    config = resolved.config
    platform = resolved.platform
    infos, stored, features, read = _infos(resolved, registry, headers)
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
        token_bytes=dict(read),
    )


def _infos(
    resolved: Resolved, registry: LoadedRegistry, headers: Headers | None
) -> tuple[list[WorkerInfo], int | None, dict[str, list[int]], Counter[str]]:
    """Return the worker info per rank, the checkpoint bytes, the feature bytes per rank, and the
    bytes that a token reads by dtype.
    """
    config = resolved.config
    source = resolved.source
    parallel = resolved.config.parallel
    infos: list[WorkerInfo] = []
    stored: int | None = None
    host_bytes_of = {
        half.name: half.host_bytes
        for _, half in registry.runner_extensions(config)
        if hasattr(half, "host_bytes")
    }
    features: dict[str, list[int]] = {name: [] for name in host_bytes_of}
    read: Counter[str] = Counter()
    for stage in range(parallel.pipeline_parallel_size):
        pipeline = Pipeline(parallel.pipeline_parallel_size, stage, layer_partition(config))
        tensors = _headers(config, source, registry) if headers is None else headers(source)
        listed = None if tensors is None else list(tensors)
        model = _build(
            resolved, registry, ParallelGroup(parallel.tensor_parallel_size), pipeline, listed or ()
        )
        check_cached(model, config)
        if listed is not None:
            stored = sum(tensor.nbytes for _, tensor in listed)
            if isinstance(model, Decoder):  # other modules may read the values
                model.load_weights(listed)
        tensors_of_rank = (*model.parameters(), *model.buffers())  # type: ignore[attr-defined]
        weight_bytes = sum(tensor.nbytes for tensor in tensors_of_rank)
        info = WorkerInfo(
            layers=list(model.kv_layers),
            kv_memory_bytes=resolved.platform.kv_memory_bytes(config, weight_bytes),
            vocab_size=model.vocab_size,
            weight_bytes=weight_bytes,
        )
        infos += [info] * parallel.tensor_parallel_size  # the last rank's vocabulary is padded
        for dtype, num_bytes in token_bytes(model).items():
            read[dtype] += num_bytes * parallel.tensor_parallel_size
        for name, host_bytes in host_bytes_of.items():
            features[name] += [host_bytes(model, config)] * parallel.tensor_parallel_size
    return infos, stored, features, read


def token_bytes(model: Any) -> Counter[str]:
    """Return the bytes of weights that a token is multiplied with, by dtype.

    Of experts, the chosen ones; of an embedding, nothing, unless it is the head, too.
    """
    modules = list(model.modules())
    heads = {id(module.rows) for module in modules if isinstance(module, Head)}
    shares = {
        id(module.experts): module.spec.top_k / module.spec.experts
        for module in modules
        if isinstance(module, Moe)
    }
    found: Counter[str] = Counter()
    for module in modules:
        if isinstance(module, Embedding) and id(module) not in heads:
            continue
        share = shares.get(id(module), 1.0)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            found[dtype_name(tensor.dtype)] += int(tensor.nbytes * share)
    return found


def _build(
    resolved: Resolved,
    registry: LoadedRegistry,
    group: ParallelGroup,
    pipeline: Pipeline,
    stored: Iterable[tuple[str, torch.Tensor]],
) -> Model:
    """Return one rank's model on the meta device, without attention and kernels."""
    config = resolved.config
    source = resolved.source
    platform = resolved.platform
    facts = {**platform.facts(), "dtype": config.model.dtype}
    length = min(context_length(config), MAX_TABLE_POSITIONS)
    spec, _ = read_model(config, source, registry)
    attention: Any = None
    context = BuildContext(
        dtype=getattr(torch, config.model.dtype),
        device=META,
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
        pass_checkpoint_dtypes(context.quant, spec.names, stored)
        return Decoder(replace(spec, max_positions=length), context)
    return spec.build(context)


def _headers(
    config: EngineConfig, source: ModelSource, registry: LoadedRegistry
) -> Iterable[tuple[str, torch.Tensor]] | None:
    """Return the checkpoint's tensors on the meta device, named by its own loader."""
    name = config.load.load_format
    if name == "auto":
        name = source.weight_loader
    loader = registry.load(registry.choose("weight_loaders", name))(source, config)
    if hasattr(loader, "expect"):  # a dummy loader
        return None
    if hasattr(loader, "headers"):
        listed: Iterable[tuple[str, torch.Tensor]] = loader.headers()
        return listed
    return ((name, tensor.to(META)) for name, tensor in loader.tensors())


def _least_layout(config: EngineConfig, info: WorkerInfo) -> KVLayout:
    """Return the minimal layout for one request of maximum context length."""
    unlimited = replace(config.cache, kv_cache_memory_bytes=UNLIMITED, num_gpu_blocks_override=None)
    layout = fit_memory(replace(config, cache=unlimited), info, cut_context=False)[1]
    step = config.scheduler.max_num_batched_tokens or context_length(config)
    needed = _needed_blocks(layout, context_length(config), step)
    pools = zip(layout.pools, needed, strict=True)
    return KVLayout(
        groups=layout.groups,
        pools=[
            PoolLayout(need + NULL_BLOCKS, pool.slot_bytes, pool.num_slots) for pool, need in pools
        ],
        hash_block_size=layout.hash_block_size,
    )


def _needed_blocks(layout: KVLayout, num_tokens: int, step_tokens: int) -> list[int]:
    """Return the number of blocks per pool for one request of `num_tokens`."""
    needed = [0] * len(layout.pools)
    for group in layout.groups:
        needed[group.pool] += peak_blocks(group.spec, group.block_size, num_tokens, step_tokens)
    return needed


def _ranks(infos: list[WorkerInfo], tensor: int) -> list[range]:
    """Return the range of cached layers of each rank."""
    out: list[range] = []
    start = 0
    for index, info in enumerate(infos):
        out.append(range(start, start + len(info.layers)))
        if index % tensor == tensor - 1:
            start += len(info.layers)
    return out


def _own_bytes(layout: KVLayout, own: range) -> int:
    """Return the bytes of the slots of these layers."""
    held = {
        (group.pool, slot)
        for group in layout.groups
        for slot, layer in enumerate(group.layers)
        if layer in own
    }
    return sum(layout.pools[pool].num_blocks * layout.pools[pool].slot_bytes for pool, _ in held)
