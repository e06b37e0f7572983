"""Layers that a guesser adds behind the model's: what their attention is given of a row, from
wherever its text begins there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from builtin_plugins.speculators.branches import Branches, Planted, Query, View, Write
from core.api import (
    AttentionInputs,
    ConfigError,
    FullAttention,
    LatentKeys,
    LayerKV,
    SlidingWindow,
    TokenTree,
)

if TYPE_CHECKING:
    from builtin_plugins.speculators.trees import Grown
    from core.api import DraftRow
    from core.contracts import AttentionBackend
    from core.contracts.scheduling import WorkerParts
    from core.models.layers.state import LayerCache

Ints = npt.NDArray[np.int64]
PREFIX = "draft."
"""Begins the names of these layers."""


def kept(layers: Sequence[LayerKV], whose: str) -> list[LayerKV]:
    """Return what such layers keep: all tokens, behind a window too, since they may be caught up
    with from the beginning.

    Raises `ConfigError` for what is neither keys and values nor latents.
    """
    return [LayerKV(PREFIX + layer.name, _kept(layer, whose)) for layer in layers]


def _kept(layer: LayerKV, whose: str) -> FullAttention:
    spec = layer.spec
    if type(spec) in (FullAttention, LatentKeys):
        return spec  # type: ignore[return-value]
    if type(spec) is SlidingWindow:
        return FullAttention(spec.kv_heads, spec.head_size, spec.dtype, scaled=spec.scaled)
    raise ConfigError(
        f"{whose} has layers that keep other than keys and values ({type(spec).__name__}), which "
        "cannot guess here; "
        "choose one of attention alone."
    )


class OwnLayers:
    """Their caches, and their blocks of every row."""

    def __init__(
        self, parts: WorkerParts, backend: AttentionBackend, tree: TokenTree | None
    ) -> None:
        """`tree`: the largest that is filled; None: chains are."""
        self.caches: Sequence[LayerCache] = parts.caches
        self._batch = parts.batch
        self._layout = parts.layout
        self._backend = backend
        groups = {
            layer: index
            for index, group in enumerate(parts.layout.groups)
            for layer in group.layers
        }
        self._group_of_layer = [groups[parts.first_layer + own] for own in range(len(parts.caches))]
        self._groups = set(self._group_of_layer)
        self._device = parts.device
        layers = range(parts.first_layer, parts.first_layer + len(parts.caches))
        self._branches = None if tree is None else Branches(parts, backend, layers, tree)

    def attention(
        self,
        rows: Sequence[int],
        origins: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
    ) -> list[Any]:
        """Return what each layer's attention is given for `counts` tokens of rows, from positions
        `starts` on.

        Nothing is attended to before position `origins` of a row: keys and values stand in its
        blocks as if it began there.
        """
        row, origin, start, count = np.array([rows, origins, starts, counts], dtype=np.int64)
        begins = start - origin
        ends = np.cumsum(count)
        lengths = begins + count
        inside = positions_of(begins, count)
        sequence = np.repeat(np.arange(len(rows)), count)
        query_starts = [0, *ends.tolist()]
        kv_lens = lengths.tolist()
        on_device = self._to_device(begins), self._to_device(count), self._to_device(lengths)
        prepared = {}
        for group in self._groups:
            layout = self._layout.groups[group]
            table = self._batch.tables[group]
            size = layout.block_size
            width = table.shape[1]
            most = -(-max(kv_lens) // size)
            places = np.minimum((origin // size)[:, None] + np.arange(most), width - 1)
            own = table.take(self._to_device(row[:, None] * width + places))
            blocks = own.take(self._to_device(sequence * most + inside // size)).long()
            prepared[group] = self._backend.prepare(
                AttentionInputs(
                    query_starts=query_starts,
                    kv_lens=kv_lens,
                    block_table=own,
                    slots=blocks.mul_(size).add_(self._to_device(inside % size)),
                    block_size=size,
                    spec=layout.spec,  # type: ignore[arg-type]  # `kept` made it
                    starts=on_device[0],
                    counts=on_device[1],
                    lengths=on_device[2],
                )
            )
        return [prepared[group] for group in self._group_of_layer]

    def further(
        self,
        asked: Sequence[DraftRow],
        origins: Sequence[int],
        ends: Sequence[int],
        level: Sequence[Grown],
    ) -> tuple[list[int], list[Any]]:
        """Return the positions of nodes of one level, and what each layer's attention is given for
        them.

        The first level stands at positions `ends` of the rows, behind what is cached of these.
        """
        trees = [each.tree or TokenTree.chain(each.most) for each in asked]
        depth = trees[level[0].row].depths[level[0].place]
        positions = [ends[node.row] + depth - 1 for node in level]
        if self._branches is None or all(asked[node.row].tree is None for node in level):
            rows = [asked[node.row].row for node in level]
            begins = [origins[node.row] for node in level]
            return positions, self.attention(rows, begins, positions, [1] * len(level))
        views: list[View] = []
        firsts: dict[int, int] = {}
        branching = [row for row, each in enumerate(asked) if each.tree is not None]
        for row in sorted({node.row for node in level}):
            number = (
                branching.index(row) if row in branching else 0
            )  # one path alone has no blocks of its own
            firsts[row], planted = len(views), Planted(trees[row], number, ends[row] - 1)
            paths = range(len(trees[row].paths))
            views += [View(asked[row].row, origins[row], planted, path) for path in paths]
        if depth == 1:
            self._branches.plant([views[at] for at in firsts.values()])
        queries = []
        writes = []
        for token, (node, position) in enumerate(zip(level, positions, strict=True)):
            through = [
                firsts[node.row] + at
                for at, path in enumerate(trees[node.row].paths)
                if node.place in path
            ]
            inside = position - origins[node.row]
            queries.append(Query(through[0], inside, 1))
            writes += [Write(view, inside, token) for view in through]
        return positions, self._branches.attention(views, queries, np.array(writes))

    def _to_device(self, numbers: Ints) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device, non_blocking=True)


def positions_of(starts: Ints, counts: Ints) -> Ints:
    """Return the positions of `counts` tokens each, from `starts` on, one behind the other."""
    ends = np.cumsum(counts)
    positions: Ints = np.repeat(starts - ends + counts, counts) + np.arange(ends[-1])
    return positions
