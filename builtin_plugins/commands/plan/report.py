"""Formats a memory plan as text and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.sizes import show_bytes
from core.model_spec.kv import (
    CacheSpec,
    ChunkedLocal,
    CrossAttention,
    RecurrentState,
    SlidingWindow,
)

if TYPE_CHECKING:
    from builtin_plugins.commands.plan.speed import SpeedEstimate, TokenRates
    from core import MemoryPlan

REQUEST_LENGTHS: Final = (1000, 4000)
"""Request lengths in tokens reported besides the full context."""
MIN_SPARE_BYTES: Final = 1 << 30
"""Free bytes below which the plan warns: processes and activations need several hundred MiB."""


def as_lines(
    plan: MemoryPlan, ways: Sequence[str], speed: SpeedEstimate | None = None
) -> Iterator[str]:
    """Yield the plan as text lines, the verdict last."""
    config = plan.config
    source = plan.source
    settings = f"{config.model.dtype}, on {config.device.device}"
    yield f"model     {source.name}: {source.architecture}, {settings}"
    stored = (
        "headers not read"
        if plan.stored_bytes is None
        else f"{show_bytes(plan.stored_bytes)} in the checkpoint"
    )
    yield f"weights   {_over_ranks(plan.weight_bytes)} ({stored})"
    yield from _kv_cache_lines(plan)
    for name, sizes in plan.feature_bytes.items():
        yield f"{name:<9} {_over_ranks(sizes)} maximum"
    yield f"context   {plan.context_length:,} tokens{_cut(plan)}"
    for index, (tokens, count) in enumerate(_at_once(plan).items()):
        label = "" if index else "at once"
        noun = "request" if count == 1 else "requests"
        yield f"{label:<10}{count:,} {noun} of {tokens:,} tokens"
    if speed is not None:
        yield from _speed_lines(speed)
    yield _memory_line(plan)
    yield _verdict(plan)
    if ways:
        purpose = (
            "any of these makes it fit"
            if plan.short_bytes
            else f"for all {source.max_model_len:,} tokens"
        )
        yield f"          {purpose}: {', or '.join(ways)}"


def _kv_cache_lines(plan: MemoryPlan) -> Iterator[str]:
    """Yield the size of the KV cache, its layers and its block pools."""
    config = plan.config
    sizing = "configured" if config.cache.kv_cache_memory_bytes else "automatic"
    if config.cache.num_gpu_blocks_override:
        sizing = "configured as blocks"
    if plan.obstacle:
        sizing = "the minimum"
    yield f"KV cache  {_over_ranks(plan.kv_bytes)} ({sizing})"
    share = ", one rank" if len(plan.weight_bytes) > 1 else ""
    for group in _groups(plan):
        yield f"          {group['layers']} layers keep {group['keeps']}: {_size(group)}{share}"
    for pool in _pools(plan):
        yield (
            f"          {pool['blocks']:,} blocks of {pool['block_size']:,} tokens, "
            f"{show_bytes(pool['block_bytes'])} each"
        )


def _speed_lines(speed: SpeedEstimate) -> Iterator[str]:
    """Yield the estimated tokens per second, and what would be faster."""
    threads = "1 thread" if speed.threads == 1 else f"{speed.threads} threads"
    yield f"speed     {rates_text(speed.rates)} ({speed.isa}, {threads}, measured now)"
    if speed.with_int8 is not None:
        yield f"          with --quantization int8: {rates_text(speed.with_int8)}"


def rates_text(rates: TokenRates) -> str:
    return f"about {_round(rates.decode)} tokens/s for one request, prompts {_round(rates.prefill)}"


def _round(number: float) -> str:
    """Return two digits of an estimate: `0.42`, `6.7`, `31`, `1,200`."""
    rounded = float(f"{number:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def _memory_line(plan: MemoryPlan) -> str:
    """Return the free and the taken memory of all ranks."""
    taken = sum(plan.taken_bytes)
    if plan.free_bytes is None:
        return f"memory    {show_bytes(taken)} taken"
    free = plan.free_bytes * len(plan.weight_bytes)
    left = f", {show_bytes(free - taken)} left" if free >= taken else ""
    return f"memory    {show_bytes(free)} free, {show_bytes(taken)} taken{left}"


def _verdict(plan: MemoryPlan) -> str:
    if plan.short_bytes:
        why = plan.obstacle or "weights and KV cache exceed the free memory"
        return f"does not fit: {show_bytes(plan.short_bytes)} missing{_each(plan)}; {why}"
    if plan.free_bytes is None:
        return "fits if this memory is free; the platform does not report it"
    left = plan.free_bytes - max(plan.taken_bytes)
    return "fits" if left >= MIN_SPARE_BYTES else f"fits, with {show_bytes(left)} left"


def _each(plan: MemoryPlan) -> str:
    return " for each rank" if len(plan.weight_bytes) > 1 else ""


def as_json(
    plan: MemoryPlan, ways: Sequence[str], speed: SpeedEstimate | None = None
) -> dict[str, Any]:
    """Return the plan as JSON data, sizes in bytes."""
    config = plan.config
    source = plan.source
    return {
        "model": source.name,
        "architecture": source.architecture,
        "dtype": config.model.dtype,
        "device": config.device.device,
        "tensor_parallel_size": config.parallel.tensor_parallel_size,
        "pipeline_parallel_size": config.parallel.pipeline_parallel_size,
        "fits": not plan.short_bytes,
        "short_bytes": plan.short_bytes,
        "reason": plan.obstacle,
        "flags_that_help": list(ways),
        "weight_bytes": plan.weight_bytes,
        "checkpoint_bytes": plan.stored_bytes,
        "kv_cache": {
            "bytes": plan.kv_bytes,
            "given_bytes": plan.kv_memory_bytes,
            "groups": list(_groups(plan)),
            "pools": list(_pools(plan)),
        },
        "features": plan.feature_bytes,
        "context_length": plan.context_length,
        "stated_context_length": source.max_model_len,
        "max_num_seqs": config.scheduler.max_num_seqs,
        "requests_at_once": {str(tokens): count for tokens, count in _at_once(plan).items()},
        "free_bytes": plan.free_bytes,
        "token_bytes": plan.token_bytes,
        "speed": None if speed is None else speed.as_json(),
    }


def _at_once(plan: MemoryPlan) -> dict[int, int]:
    if plan.obstacle:
        return {}
    lengths = [
        *(length for length in REQUEST_LENGTHS if length < plan.context_length),
        plan.context_length,
    ]
    return {length: plan.requests_at_once(length) for length in reversed(lengths)}


def _groups(plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    """Yield the cached layers, grouped by cache spec and block size."""
    counts: Counter[tuple[CacheSpec, int]] = Counter()
    for group in plan.layout.groups:
        counts[group.spec, group.block_size] += len(group.layers)
    for (spec, block_size), layers in counts.items():
        yield {
            "keeps": _keeps(spec),
            "layers": layers,
            "token_bytes": 0 if isinstance(spec, RecurrentState) else layers * spec.token_bytes,
            "block_bytes": layers * spec.page_bytes(block_size),
        }


def _size(group: Mapping[str, Any]) -> str:
    if group["token_bytes"]:
        return f"{show_bytes(group['token_bytes'])} a token"
    return f"{show_bytes(group['block_bytes'])} a state"


def _pools(plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    for index, pool in enumerate(plan.layout.pools):
        sizes = {group.block_size for group in plan.layout.groups if group.pool == index}
        yield {
            "blocks": pool.num_blocks,
            "block_size": max(sizes),
            "block_bytes": pool.slot_bytes * pool.num_slots,
        }


def _keeps(spec: CacheSpec) -> str:
    if isinstance(spec, RecurrentState):
        return "a state"
    if isinstance(spec, SlidingWindow):
        return f"the last {spec.window:,} tokens"
    if isinstance(spec, ChunkedLocal):
        return f"chunks of {spec.chunk:,} tokens"
    if isinstance(spec, CrossAttention):
        return f"up to {spec.max_len:,} positions of the encoder"
    return "all tokens"


def _cut(plan: MemoryPlan) -> str:
    stated = plan.source.max_model_len
    return "" if plan.context_length == stated else f" of the model's {stated:,}"


def _over_ranks(sizes: Sequence[int]) -> str:
    """Return the total, and the size per rank."""
    if len(sizes) == 1:
        return show_bytes(sizes[0])
    if len(set(sizes)) == 1:
        return f"{show_bytes(sum(sizes))}, {show_bytes(sizes[0])} on each of {len(sizes)} ranks"
    return f"{show_bytes(sum(sizes))}, by rank {', '.join(map(show_bytes, sizes))}"
