"""The caches of a model's layers, made of memory that their groups share."""

from __future__ import annotations

import torch

from core.contracts import AttentionBackend, Platform
from core.model_spec.kv import KVLayout, RecurrentState, num_spare
from core.models.layers.state import LayerCache, state_views


def make_caches(
    layout: KVLayout, backend: AttentionBackend, own: range, platform: Platform
) -> tuple[list[LayerCache], dict[tuple[int, int], torch.Tensor]]:
    """Return the cache of each layer of our own, and all memory by block, spare ones behind the
    others.

    Groups of one pool share it, slot by slot.
    """
    memory: dict[tuple[int, int], torch.Tensor] = {}
    caches: dict[int, LayerCache] = {}
    for group in layout.groups:
        pool = layout.pools[group.pool]
        spec = group.spec
        size = group.block_size
        num_blocks = pool.num_blocks + num_spare(layout.groups, group.pool)
        for slot, layer in enumerate(group.layers):
            if layer in own:
                if (group.pool, slot) not in memory:
                    with torch.inference_mode(
                        False
                    ):  # threads of features may write to it, in whatever mode they are
                        memory[group.pool, slot] = platform.allocate(num_blocks * pool.slot_bytes)
                raw = memory[group.pool, slot][: num_blocks * spec.page_bytes(size)]
                if isinstance(spec, RecurrentState):
                    caches[layer] = state_views(raw, spec, num_blocks)
                else:
                    shape = backend.cache_shape(spec, num_blocks, size)
                    caches[layer] = raw.view(getattr(torch, spec.dtype)).view(shape)
    blocks = {
        place: raw.view(-1, layout.pools[place[0]].slot_bytes) for place, raw in memory.items()
    }
    return [caches[layer] for layer in own], blocks
