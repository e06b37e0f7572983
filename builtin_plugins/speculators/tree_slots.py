"""KV slots of draft trees: each path of a tree is a sequence with its own block table.

The first path continues in the row's own blocks. The others use spare blocks, of which the first
starts as a copy of the row's last block. A token that several paths share is computed once and
written to all of them. So attention backends know no trees, and windows, latents and sinks work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from core.api.models import AttentionInputs

Ints = npt.NDArray[np.int64]

if TYPE_CHECKING:
    from builtin_plugins.speculators.contract import TokenTree
    from core.api.execution import WorkerParts
    from core.model_spec.kv import GroupLayout


def num_spare_blocks(tree: TokenTree, block_size: int, num_rows: int) -> int:
    """Return the spare blocks of each KV group for the trees of `num_rows` rows."""
    return num_rows * (len(tree.paths) - 1) * _blocks_per_path(max(tree.depths), block_size)


def _blocks_per_path(depth: int, block_size: int) -> int:
    """Return the blocks of a path that starts anywhere in a block."""
    return 1 + -(-depth // block_size)


@dataclass(frozen=True, slots=True)
class PlacedTree:
    """A tree of one row in one step, and its spare blocks."""

    tree: TokenTree
    number: int
    """Index of its set of spare blocks."""
    last_position: int
    """Position of the root, the last known token."""


class View(NamedTuple):
    """A sequence that attention reads: a row, or a path of its tree."""

    row: int
    origin: int = 0
    """Position at which the row's cached text starts."""
    placed: PlacedTree | None = None
    path: int = 0
    """Path of the tree; 0 uses the row's own blocks."""


class Query(NamedTuple):
    """Consecutive tokens of the step at the end of a view."""

    view: int
    start: int
    length: int


class Write(NamedTuple):
    """Writes a token's key and value to a position of a view."""

    view: int
    position: int
    token: int


class TreeSlots:
    """The spare blocks of some layers, and attention inputs for trees."""

    def __init__(
        self,
        parts: WorkerParts,
        prepare: Callable[[AttentionInputs], Any],
        layers: Collection[int],
        tree: TokenTree,
    ) -> None:
        """`layers`: indices in the KV layout. `tree`: the largest tree."""
        self._parts = parts
        self._prepare_group = prepare
        self._max_branches = len(tree.paths) - 1
        depth = max(tree.depths)
        slots = {
            index: [slot for slot, layer in enumerate(group.layers) if layer in layers]
            for index, group in enumerate(parts.layout.groups)
        }
        self._slots = {index: group_slots for index, group_slots in slots.items() if group_slots}
        self._path_blocks = {
            index: _blocks_per_path(depth, self._group(index).block_size) for index in self._slots
        }
        self._group_of = {
            layer: index for index in self._slots for layer in self._group(index).layers
        }
        self._layers = sorted(layers)
        num_rows = [
            self._group(index).spec.spare // (self._max_branches * path_blocks)
            for index, path_blocks in self._path_blocks.items()
        ]
        self.num_rows = min(num_rows, default=0)
        """Rows that may have a tree in one step."""

    def _group(self, index: int) -> GroupLayout:
        return self._parts.layout.groups[index]

    def _spare_blocks(self, index: int, placed: PlacedTree) -> Ints:
        """Return the spare blocks of all paths but the first, [paths, blocks per path]."""
        path_blocks = self._path_blocks[index]
        first = (
            self._parts.layout.first_spare_block(index)
            + placed.number * self._max_branches * path_blocks
        )
        num_blocks = (len(placed.tree.paths) - 1) * path_blocks
        return first + np.arange(num_blocks).reshape(-1, path_blocks)

    def _row_blocks(
        self, index: int, row: int, placed: PlacedTree, origin: int = 0
    ) -> torch.Tensor:
        """Return the row's own blocks that the tree covers."""
        size = self._group(index).block_size
        last = placed.last_position - origin
        first_block = origin // size + last // size
        count = (last + max(placed.tree.depths)) // size - last // size + 1
        table = self._parts.batch.tables[index, row, first_block : first_block + count]
        return table.long()

    def _copy(self, index: int, sources: torch.Tensor, targets: torch.Tensor) -> None:
        for slot in self._slots[index]:
            memory = self._parts.memory[self._group(index).pool, slot]
            memory[targets] = memory[sources]

    def begin(self, views: Sequence[View]) -> None:
        """Copy the last block of each row to the start of its branches."""
        for index in self._slots:
            sources = []
            targets = []
            for row, origin, placed, _ in views:
                if placed is not None and len(placed.tree.paths) > 1:
                    targets.append(self._spare_blocks(index, placed)[:, 0])
                    last_block = self._row_blocks(index, row, placed, origin)[:1]
                    sources.append(last_block.expand(len(targets[-1])))
            if targets:
                self._copy(index, torch.cat(sources), self._to_device(np.concatenate(targets)))

    def accept(self, row: int, placed: PlacedTree, path: torch.Tensor) -> None:
        """Copy the accepted path's blocks to the row. `path`: [] int64 on the device."""
        for index in self._slots:
            own = self._row_blocks(index, row, placed)
            spare = self._to_device(self._spare_blocks(index, placed)[:, : len(own)])
            self._copy(index, torch.cat((own[None], spare))[path], own)

    def _to_device(self, numbers: Ints) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._parts.device)

    def attention(self, views: Sequence[View], queries: Sequence[Query], writes: Ints) -> list[Any]:
        """Return each layer's attention inputs.

        `queries`: in the order of the step's tokens. `writes`: [n, 3] columns of `Write`.
        """
        prepared = {index: self._prepare(index, views, queries, writes) for index in self._slots}
        return [prepared[self._group_of[layer]] for layer in self._layers]

    def _prepare(
        self, index: int, views: Sequence[View], queries: Sequence[Query], writes: Ints
    ) -> AttentionInputs | Any:
        group = self._group(index)
        device = self._parts.device
        size = group.block_size
        all_tables = self._parts.batch.tables[index]
        view, start, count = np.array(queries, dtype=np.int64).T
        write_view, position, token = writes.T
        lengths = start + count
        width = max(int(lengths.max()) - 1, int(position.max())) // size + 1
        first_blocks = np.array([each.origin // size for each in views])
        columns = first_blocks[:, None] + np.arange(width)
        columns = np.minimum(columns, all_tables.shape[1] - 1)
        rows = torch.tensor([each.row for each in views], device=device)
        tables = all_tables[rows[:, None], torch.from_numpy(columns).to(device)]
        for number, each in enumerate(views):
            if each.placed is not None and each.path:
                first = (each.placed.last_position - each.origin) // size
                spare = self._spare_blocks(index, each.placed)[each.path - 1][: width - first]
                tables[number, first : first + len(spare)] = torch.from_numpy(spare).to(tables)
        on_device = self._to_device
        positions = on_device(position)
        blocks = tables[on_device(write_view), positions // size].long()
        slots = blocks * size + positions % size
        return self._prepare_group(
            AttentionInputs(
                query_starts=[0, *np.cumsum(count).tolist()],
                kv_lens=lengths.tolist(),
                block_table=tables[on_device(view)],
                slots=slots,
                block_size=size,
                spec=group.spec,  # type: ignore[arg-type]  # of attention
                starts=on_device(start),
                counts=on_device(count),
                lengths=on_device(lengths),
                slot_tokens=on_device(token),
            ),
        )
