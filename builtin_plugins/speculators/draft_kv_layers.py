"""KV layers of speculators: their specs, and attention inputs for a row's text from any origin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from builtin_plugins.speculators.contract import TokenTree
from builtin_plugins.speculators.tree_slots import PlacedTree, Query, TreeSlots, View, Write
from core.api import ConfigError
from core.api.models import AttentionInputs
from core.model_spec.kv import (
    ChunkedLocal,
    FullAttention,
    IndexKeys,
    LatentKeys,
    LayerKV,
    SlidingLatents,
    SlidingRows,
    SlidingWindow,
)

if TYPE_CHECKING:
    from builtin_plugins.speculators.contract import DraftRow
    from builtin_plugins.speculators.draft_trees import LevelNode
    from core.api.execution import WorkerParts
    from core.models.layers.state import LayerCache

Ints = npt.NDArray[np.int64]
PREFIX = "draft."
"""Prefix of these layers' names."""


def draft_layers(layers: Sequence[LayerKV], source: str) -> list[LayerKV]:
    """Return a speculator's KV layers for the worker.

    Windows and chunks cache all tokens, because a row may catch up from its start. `source`: the
    flag, for errors. Raises `ConfigError` for layers without keys and values or latents.
    """
    return [LayerKV(PREFIX + layer.name, _spec_of(layer, source)) for layer in layers]


def _spec_of(layer: LayerKV, source: str) -> FullAttention:
    spec = layer.spec
    if type(spec) in (FullAttention, LatentKeys, IndexKeys) and getattr(spec, "rate", 1) == 1:
        return spec  # type: ignore[return-value]
    if type(spec) is SlidingLatents:
        return LatentKeys(spec.kv_heads, spec.head_size, spec.dtype, scaled=spec.scaled)
    if isinstance(spec, SlidingWindow | ChunkedLocal) and not isinstance(spec, SlidingRows):
        return FullAttention(spec.kv_heads, spec.head_size, spec.dtype, scaled=spec.scaled)
    raise ConfigError(
        f"{source}: got layers with a {type(spec).__name__}; expected attention layers only. "
        "Choose another draft model."
    )


class DraftKVLayers:
    """Caches and attention inputs of a speculator's KV layers."""

    def __init__(
        self,
        parts: WorkerParts,
        prepare: Callable[[AttentionInputs], Any],
        tree: TokenTree | None,
    ) -> None:
        """`tree`: the largest tree to fill; None: chains only."""
        self.caches: Sequence[LayerCache] = parts.caches
        self._batch = parts.batch
        self._layout = parts.layout
        self._prepare = prepare
        groups = {
            layer: index
            for index, group in enumerate(parts.layout.groups)
            for layer in group.layers
        }
        layers = range(parts.first_layer, parts.first_layer + len(parts.caches))
        self._group_of_layer = [groups[layer] for layer in layers]
        self._groups = set(self._group_of_layer)
        self._device = parts.device
        self._slots = None if tree is None else TreeSlots(parts, prepare, layers, tree)

    def attention(
        self,
        rows: Sequence[int],
        origins: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
    ) -> list[Any]:
        """Return each layer's attention inputs for `counts` tokens of rows, from `starts` on.

        Attention sees nothing before a row's origin: its blocks are filled as if the text started
        there.
        """
        row, origin, start, count = np.array([rows, origins, starts, counts], dtype=np.int64)
        relative_starts = start - origin
        ends = np.cumsum(count)
        lengths = relative_starts + count
        positions = consecutive_positions(relative_starts, count)
        sequence = np.repeat(np.arange(len(rows)), count)
        query_starts = [0, *ends.tolist()]
        kv_lens = lengths.tolist()
        starts_on_device = self._to_device(relative_starts)
        counts_on_device = self._to_device(count)
        lengths_on_device = self._to_device(lengths)
        prepared = {}
        for group in self._groups:
            layout = self._layout.groups[group]
            table = self._batch.tables[group]
            size = layout.block_size
            width = table.shape[1]
            num_blocks = -(-max(kv_lens) // size)
            columns = np.minimum((origin // size)[:, None] + np.arange(num_blocks), width - 1)
            block_table = table.take(self._to_device(row[:, None] * width + columns))
            block_index = self._to_device(sequence * num_blocks + positions // size)
            blocks = block_table.take(block_index).long()
            prepared[group] = self._prepare(
                AttentionInputs(
                    query_starts=query_starts,
                    kv_lens=kv_lens,
                    block_table=block_table,
                    slots=blocks.mul_(size).add_(self._to_device(positions % size)),
                    block_size=size,
                    spec=layout.spec,  # type: ignore[arg-type]  # made by `draft_layers`
                    starts=starts_on_device,
                    counts=counts_on_device,
                    lengths=lengths_on_device,
                ),
            )
        return [prepared[group] for group in self._group_of_layer]

    def level_attention(
        self,
        draft_rows: Sequence[DraftRow],
        origins: Sequence[int],
        ends: Sequence[int],
        level: Sequence[LevelNode],
    ) -> tuple[list[int], list[Any]]:
        """Return positions and each layer's attention inputs for the nodes of one tree level.

        `ends`: the rows' positions of the first level, after their cached text.
        """
        trees = [row.tree or TokenTree.chain(row.max_draft_tokens) for row in draft_rows]
        depth = trees[level[0].row].depths[level[0].node]
        positions = [ends[node.row] + depth - 1 for node in level]
        if self._slots is None or all(draft_rows[node.row].tree is None for node in level):
            rows = [draft_rows[node.row].row for node in level]
            row_origins = [origins[node.row] for node in level]
            return positions, self.attention(rows, row_origins, positions, [1] * len(level))
        views: list[View] = []
        first_views: dict[int, int] = {}
        tree_rows = [index for index, row in enumerate(draft_rows) if row.tree is not None]
        for row in sorted({node.row for node in level}):
            # A chain uses no spare blocks, so its number does not matter.
            number = tree_rows.index(row) if row in tree_rows else 0
            placed = PlacedTree(trees[row], number, ends[row] - 1)
            first_views[row] = len(views)
            views += [
                View(draft_rows[row].row, origins[row], placed, path)
                for path in range(len(trees[row].paths))
            ]
        if depth == 1:
            self._slots.begin([views[index] for index in first_views.values()])
        queries = []
        writes = []
        for token, (node, position) in enumerate(zip(level, positions, strict=True)):
            node_views = [
                first_views[node.row] + index
                for index, path in enumerate(trees[node.row].paths)
                if node.node in path
            ]
            relative = position - origins[node.row]
            queries.append(Query(node_views[0], relative, 1))
            writes += [Write(view, relative, token) for view in node_views]
        return positions, self._slots.attention(views, queries, np.array(writes))

    def _to_device(self, numbers: Ints) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device, non_blocking=True)


def consecutive_positions(starts: Ints, counts: Ints) -> Ints:
    """Return `counts` consecutive positions from each of `starts`, concatenated."""
    ends = np.cumsum(counts)
    positions: Ints = np.repeat(starts - ends + counts, counts) + np.arange(ends[-1])
    return positions
