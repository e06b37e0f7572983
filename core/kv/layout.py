"""The division of KV memory: layers into groups, groups into pools, bytes
into blocks.

Knows specs and bytes; knows no request and no device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from core.errors import ConfigError
from core.kv.windows import peak_blocks
from core.model_spec.kv import (
    CacheSpec,
    GroupLayout,
    KVLayout,
    LayerKV,
    PoolLayout,
    RecurrentState,
    num_spare_blocks,
)

NULL_BLOCKS: Final = 1
"""Reserved blocks per pool: block 0 pads block tables and takes the writes of
padding tokens.
"""

CACHED_REQUESTS: Final = 4
"""Full batches of longest requests that a pool may hold; more blocks only
slow the start.
"""
USEFUL_BLOCKS: Final = 65_536
"""Blocks that a pool may have even if fewer requests could use them."""


@dataclass(slots=True)
class _PoolNeeds:
    """Block counts of one pool: what it needs, and what it can use."""

    block_bytes: int
    one_request: int = 0
    """Blocks of one longest request."""
    state_room: int = 0
    """Blocks of recurrent states for all requests and the prefix cache; 0 for
    attention.
    """

    @property
    def request_bytes(self) -> int:
        """Bytes of one longest request."""
        return self.one_request * self.block_bytes


def plan_layout(
    layers: Sequence[LayerKV],
    *,
    block_size: int,
    memory_bytes: int,
    num_blocks: int | None = None,
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int | None = None,
    state_block_size: int | None = None,
) -> KVLayout:
    """Return the division of `memory_bytes` such that one request of
    `max_model_len` fits.

    `num_blocks` sets the number of usable attention blocks instead, divided by need
    among several pools. `max_num_batched_tokens` bounds the blocks of a windowed group
    during prefill; None: the whole context. The prefix cache keeps a recurrent state
    every `state_block_size` tokens, rounded up to whole blocks; None: only the newest
    state. Raises `ConfigError` if one longest request does not fit.
    """
    state_tokens = state_block_size or max_model_len
    state_tokens = -(-state_tokens // block_size) * block_size
    groups, pools = _group_layers(layers, block_size, state_tokens)
    max_step_tokens = max_num_batched_tokens or max_model_len
    needs = _pool_needs(groups, pools, max_model_len, max_num_seqs, max_step_tokens)
    if num_blocks is not None:
        sizes = _divide_blocks(num_blocks, needs)
        _check_fits(needs, sizes, max_model_len, f"--num-gpu-blocks-override {num_blocks}")
    else:
        reserved = [NULL_BLOCKS + num_spare_blocks(groups, pool) for pool in range(len(pools))]
        usable = memory_bytes
        for count, pool in zip(reserved, pools, strict=True):
            usable -= count * pool.block_bytes
        sizes = _divide_bytes(usable, needs)
        _check_fits(needs, sizes, max_model_len, f"the KV memory of {_format_bytes(memory_bytes)}")
        for index, need in enumerate(needs):
            useful = max(USEFUL_BLOCKS, CACHED_REQUESTS * max_num_seqs * need.one_request)
            sizes[index] = min(sizes[index], need.state_room or useful)
    sized = zip(pools, sizes, strict=True)
    return KVLayout(
        groups=groups,
        pools=[replace(pool, num_blocks=size + NULL_BLOCKS) for pool, size in sized],
        hash_block_size=math.gcd(*(group.block_size for group in groups)) or block_size,
    )


class CacheCapacity:
    """The sequences that fit an empty KV cache of a layout."""

    def __init__(self, layout: KVLayout) -> None:
        self._groups: Final = tuple(layout.groups)
        self._usable: Final = tuple(pool.num_blocks - NULL_BLOCKS for pool in layout.pools)

    def fits(self, num_tokens: int, max_step_tokens: int) -> bool:
        """Return whether a sequence of `num_tokens` fits."""
        needed = [0] * len(self._usable)
        for group in self._groups:
            peak = peak_blocks(group.spec, group.block_size, num_tokens, max_step_tokens)
            needed[group.pool] += peak
        return all(need <= usable for need, usable in zip(needed, self._usable, strict=True))

    def longest_sequence(self, max_tokens: int, max_step_tokens: int) -> int:
        """Return the length of the longest sequence up to `max_tokens` that
        fits.
        """
        low = 0
        high = max_tokens
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(middle, max_step_tokens):
                low = middle
            else:
                high = middle - 1
        return low


def _group_layers(
    layers: Sequence[LayerKV], block_size: int, state_block_size: int
) -> tuple[list[GroupLayout], list[PoolLayout]]:
    """Split layers into groups of equal specs; groups with equal page bytes
    share a pool.

    Groups of one pool have equal layer counts. Recurrent states have pools of their
    own, which get memory by other rules.
    """
    by_bytes: dict[tuple[bool, int], dict[CacheSpec, tuple[int, list[int]]]] = {}
    for index, layer in enumerate(layers):
        is_state = isinstance(layer.spec, RecurrentState)
        size = layer.spec.block_size or (state_block_size if is_state else block_size)
        specs = by_bytes.setdefault((is_state, layer.spec.page_bytes(size)), {})
        specs.setdefault(layer.spec, (size, []))[1].append(index)
    groups: list[GroupLayout] = []
    pools: list[PoolLayout] = []
    for (_, page_bytes), specs in by_bytes.items():
        num_slots = _layers_per_group([len(members) for _, members in specs.values()])
        for spec, (size, members) in specs.items():
            for start in range(0, len(members), num_slots):
                own = members[start : start + num_slots]
                groups.append(GroupLayout(spec, own, size, len(pools)))
        pools.append(PoolLayout(0, page_bytes, num_slots))
    return groups, pools


def _pool_needs(
    groups: Sequence[GroupLayout],
    pools: Sequence[PoolLayout],
    max_model_len: int,
    max_num_seqs: int,
    max_step_tokens: int,
) -> list[_PoolNeeds]:
    needs = [_PoolNeeds(pool.block_bytes) for pool in pools]
    for group in groups:
        peak = peak_blocks(group.spec, group.block_size, max_model_len, max_step_tokens)
        need = needs[group.pool]
        need.one_request += peak
        if isinstance(group.spec, RecurrentState):
            states = max_num_seqs * -(-max_model_len // group.block_size)
            need.state_room += max(peak, states)
    return needs


def _layers_per_group(counts: Sequence[int]) -> int:
    """Return the layers per group of specs with these layer counts.

    The rarest spec's count, or the largest one if padding up to it is cheaper.
    """
    fewest = min(counts)
    largest = max(counts)
    return largest if largest < 1.25 * fewest else fewest


def _divide_blocks(num_blocks: int, needs: Sequence[_PoolNeeds]) -> list[int]:
    """Divide attention blocks by need; state pools get the room
    they can use.
    """
    attention = sum(need.one_request for need in needs if not need.state_room)
    total = attention or sum(need.one_request for need in needs)
    sizes = []
    for need in needs:
        if need.state_room and attention:
            sizes.append(need.state_room)
        else:
            sizes.append(max(1, num_blocks * need.one_request // total))
    return sizes


def _divide_bytes(usable: int, needs: Sequence[_PoolNeeds]) -> list[int]:
    """Divide bytes by the need of one longest request; recurrent states come
    first.

    States get room for all requests and the prefix cache from half of the memory.
    Without attention layers they may take all of it.
    """
    states = sum(need.request_bytes for need in needs if need.state_room)
    attention = sum(need.request_bytes for need in needs) - states
    all_states = sum(need.state_room * need.block_bytes for need in needs)
    half = usable // 2 if attention else usable
    for_states = max(0, min(all_states, max(half, states), usable - attention))
    rest = max(0, usable - for_states)
    sizes = []
    for need in needs:
        if need.state_room:
            sizes.append(need.state_room * for_states // all_states)
        else:
            sizes.append(need.one_request * rest // attention)
    return sizes


def _check_fits(
    needs: Sequence[_PoolNeeds], sizes: Sequence[int], max_model_len: int, source: str
) -> None:
    if all(size >= need.one_request for need, size in zip(needs, sizes, strict=True)):
        return
    num_blocks = sum(need.one_request for need in needs)
    num_bytes = sum((need.one_request + NULL_BLOCKS) * need.block_bytes for need in needs)
    raise ConfigError(
        f"one request of --max-model-len {max_model_len} tokens needs {num_blocks} KV blocks "
        f"({_format_bytes(num_bytes)}), but {source} gives {sum(sizes)}. "
        f"Lower --max-model-len, or raise --kv-cache-memory-bytes, "
        f"--gpu-memory-utilization or --num-gpu-blocks-override."
    )


def _format_bytes(num_bytes: int) -> str:
    if num_bytes >= 2**28:
        return f"{num_bytes / 2**30:.2f} GiB"
    return f"{num_bytes / 2**20:.2f} MiB"
