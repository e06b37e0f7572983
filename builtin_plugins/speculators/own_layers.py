"""Layers that a guesser adds behind the model's: what their attention is given of a row, from wherever its text begins there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from core.api import AttentionInputs, ConfigError, FullAttention, LatentKeys, LayerKV, SlidingWindow

if TYPE_CHECKING:
    from core.contracts import AttentionBackend
    from core.contracts.scheduling import WorkerParts
    from core.nn.state import LayerCache

PREFIX = "draft."
"""Begins the names of these layers."""


def kept(layers: Sequence[LayerKV], whose: str) -> list[LayerKV]:
    """Return what such layers keep: all tokens, behind a window too, since they may be caught up with from the beginning.

    Raises `ConfigError` for what is neither keys and values nor latents.
    """
    return [LayerKV(PREFIX + layer.name, _kept(layer, whose)) for layer in layers]


def _kept(layer: LayerKV, whose: str) -> FullAttention:
    spec = layer.spec
    if type(spec) in (FullAttention, LatentKeys):
        return spec  # type: ignore[return-value]
    if type(spec) is SlidingWindow:
        return FullAttention(spec.kv_heads, spec.head_size, spec.dtype)
    raise ConfigError(
        f"{whose} has layers that keep other than keys and values ({type(spec).__name__}), which cannot guess here; "
        "choose one of attention alone."
    )


class OwnLayers:
    """Their caches, and their blocks of every row."""

    def __init__(self, parts: WorkerParts, backend: AttentionBackend) -> None:
        self.caches: Sequence[LayerCache] = parts.caches
        self._batch, self._layout, self._backend = parts.batch, parts.layout, backend
        groups = {layer: index for index, group in enumerate(parts.layout.groups) for layer in group.layers}
        self._group_of_layer = [groups[parts.first_layer + own] for own in range(len(parts.caches))]

    def attention(
        self, rows: Sequence[int], origins: Sequence[int], starts: Sequence[int], counts: Sequence[int]
    ) -> list[Any]:
        """Return what each layer's attention is given for `counts` tokens of rows, from positions `starts` on.

        Nothing is attended to before position `origins` of a row: keys and values stand in its blocks as if it began there.
        """
        device = self._batch.token_ids.device
        on_device = torch.tensor([rows, origins, starts, counts], dtype=torch.int64, device=device)
        row_index, origin, start, count = on_device
        begins = start - origin
        ends = torch.cumsum(count, 0)
        inside = torch.arange(sum(counts), device=device) - torch.repeat_interleave(ends - count - begins, count)
        lengths = [s + c - o for s, c, o in zip(starts, counts, origins, strict=True)]
        query_starts = [0, *ends.tolist()]
        prepared = {}
        for group in set(self._group_of_layer):
            layout, table = self._layout.groups[group], self._batch.tables[group]
            size = layout.block_size
            most = -(-max(lengths) // size)
            places = (origin // size)[:, None] + torch.arange(most, device=device)
            own = table[row_index[:, None], places.clamp_(max=table.shape[1] - 1)]
            sequence = torch.repeat_interleave(torch.arange(len(rows), device=device), count)
            prepared[group] = self._backend.prepare(
                AttentionInputs(
                    query_starts=query_starts,
                    kv_lens=lengths,
                    block_table=own,
                    slots=own[sequence, inside // size].long() * size + inside % size,
                    block_size=size,
                    spec=layout.spec,  # type: ignore[arg-type]  # `kept` made it
                    starts=begins,
                    counts=count,
                    lengths=begins + count,
                )
            )
        return [prepared[group] for group in self._group_of_layer]
