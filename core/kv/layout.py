"""Divides KV memory among a model's layers: layers into groups, groups into pools, bytes into
blocks.

Knows specs and bytes; knows no request and no device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import Final

from msgspec.structs import replace

from core.errors import ConfigError
from core.kv.reach import peak_blocks
from core.model_spec.kv import (
    CacheSpec,
    GroupLayout,
    KVLayout,
    LayerKV,
    PoolLayout,
    RecurrentState,
    num_spare,
)

NULL_BLOCKS: Final = 1
"""Block 0 of every pool is never given out: tables are padded with it, and padding tokens may be
written to it.
"""

CACHED_REQUESTS: Final = 4
"""Blocks beyond this many full batches of longest requests bring nothing but start-up time ..."""
USEFUL_BLOCKS: Final = 65_536
"""... unless there are fewer than this."""


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
    """Return how `memory_bytes` are divided, such that one request of `max_model_len` tokens always
    fits.

    `num_blocks` fixes the number of usable blocks instead (divided by need where there are several
    pools), and does not count those of states beside attention. `max_num_batched_tokens` bounds
    what a windowed group holds during prefill; None: the whole context. Every so many tokens a
    recurrent state is kept for the prefix cache, `state_block_size` being rounded up to whole
    blocks; None: no state is kept but the newest. Raises `ConfigError` when one longest request
    does not fit.
    """
    kept_every = state_block_size or max_model_len
    groups, pools = _group_layers(layers, block_size, -(-kept_every // block_size) * block_size)
    step = max_num_batched_tokens or max_model_len
    needs = [0] * len(pools)
    rooms = [0] * len(pools)
    for group in groups:
        need = peak_blocks(group.spec, group.block_size, max_model_len, step)
        needs[group.pool] += need
        if isinstance(group.spec, RecurrentState):
            rooms[group.pool] += max(need, max_num_seqs * -(-max_model_len // group.block_size))
    block_bytes = [pool.block_bytes for pool in pools]
    if num_blocks is not None:
        total = sum(need for need, room in zip(needs, rooms, strict=True) if not room)
        sizes = [max(1, num_blocks * need // (total or sum(needs))) for need in needs]
        sizes = [room if room and total else size for room, size in zip(rooms, sizes, strict=True)]
        _check_fits(needs, sizes, pools, max_model_len, f"--num-gpu-blocks-override {num_blocks}")
    else:
        beside = [NULL_BLOCKS + num_spare(groups, pool) for pool in range(len(pools))]
        sizes = _divide(
            memory_bytes - sum(map(mul, beside, block_bytes)), needs, rooms, block_bytes
        )
        _check_fits(needs, sizes, pools, max_model_len, f"the KV memory of {_gib(memory_bytes)}")
        most = [max(USEFUL_BLOCKS, CACHED_REQUESTS * max_num_seqs * need) for need in needs]
        sizes = [
            min(size, room or limit) for size, room, limit in zip(sizes, rooms, most, strict=True)
        ]
    return KVLayout(
        groups=groups,
        pools=[
            replace(pool, num_blocks=size + NULL_BLOCKS)
            for pool, size in zip(pools, sizes, strict=True)
        ],
        hash_block_size=math.gcd(*(group.block_size for group in groups)) or block_size,
    )


def _group_layers(
    layers: Sequence[LayerKV], block_size: int, state_block_size: int
) -> tuple[list[GroupLayout], list[PoolLayout]]:
    """Split layers into groups; those whose pages have equal bytes get equal layer counts and share
    a pool.

    States have pools of their own: how much of the memory they get follows other rules.
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
        slots = _slots([len(members) for _, members in specs.values()])
        for spec, (size, layers_of_spec) in specs.items():
            for at in range(0, len(layers_of_spec), slots):
                groups.append(GroupLayout(spec, layers_of_spec[at : at + slots], size, len(pools)))
        pools.append(PoolLayout(0, page_bytes, slots))
    return groups, pools


def _slots(counts: Sequence[int]) -> int:
    """Return the layers per group: the rarest spec's, unless all are so near that padding to the
    most is cheaper.
    """
    return max(counts) if max(counts) < 1.25 * min(counts) else min(counts)


def _divide(
    usable: int, needs: Sequence[int], rooms: Sequence[int], block_bytes: Sequence[int]
) -> list[int]:
    """Give each pool blocks in proportion to what one longest request needs of it, those of states
    first.

    States get room for every request that may run, and for what they leave to the prefix cache,
    from half of the memory; from all of it that attention's longest request leaves when there is
    nothing else.
    """
    one = [need * size for need, size in zip(needs, block_bytes, strict=True)]
    states = sum(part for part, room in zip(one, rooms, strict=True) if room)
    attention = sum(one) - states
    wanted = sum(room * size for room, size in zip(rooms, block_bytes, strict=True))
    half = usable // 2 if attention else usable
    given = max(0, min(wanted, max(half, states), usable - attention))
    rest = max(0, usable - given)
    return [
        room * given // wanted if room else need * rest // attention
        for need, room in zip(needs, rooms, strict=True)
    ]


def _check_fits(
    needs: Sequence[int],
    sizes: Sequence[int],
    pools: Sequence[PoolLayout],
    max_model_len: int,
    have: str,
) -> None:
    if all(size >= need for need, size in zip(needs, sizes, strict=True)):
        return
    wanted = sum(
        (need + NULL_BLOCKS) * pool.block_bytes for need, pool in zip(needs, pools, strict=True)
    )
    raise ConfigError(
        f"one request of --max-model-len {max_model_len} tokens needs {sum(needs)} KV blocks "
        f"({_gib(wanted)}), "
        f"but {have} gives {sum(sizes)}. Lower --max-model-len, or raise --kv-cache-memory-bytes, "
        f"--gpu-memory-utilization or --num-gpu-blocks-override."
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**28 else f"{num_bytes / 2**20:.2f} MiB"
