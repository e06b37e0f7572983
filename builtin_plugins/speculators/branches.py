"""Where branches keep keys and values: a path through a tree reads what its row has cached, and
goes on in blocks of its own.

Each path is a sequence to an attention backend. The first one goes on in the row's own blocks; the
others have spare blocks, of which the first begins as a copy of the row's last one. A token that
several paths share is computed once and kept by each. So no backend knows of trees, and whatever a
layer does, a window, a latent, a sink, holds for them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from core.api import AttentionInputs

Ints = npt.NDArray[np.int64]

if TYPE_CHECKING:
    from core.api import AttentionBackend, TokenTree
    from core.contracts.scheduling import WorkerParts
    from core.model_spec.kv import GroupLayout


def spare_blocks(tree: TokenTree, block_size: int, num_rows: int) -> int:
    """Return the blocks that branches of so many rows need in each group."""
    return num_rows * (len(tree.paths) - 1) * _blocks_of(max(tree.depths), block_size)


def _blocks_of(depth: int, block_size: int) -> int:
    """Return in how many blocks a path may lie that begins anywhere in one."""
    return 1 + -(-depth // block_size)


@dataclass(frozen=True, slots=True)
class Planted:
    """A tree of one row in one step."""

    tree: TokenTree
    number: int
    """Whose spare blocks it has."""
    end: int
    """The position of the token it grows from."""


class View(NamedTuple):
    """What a sequence reads."""

    row: int
    origin: int = 0
    """Position of the row at which what is cached of it begins."""
    planted: Planted | None = None
    path: int = 0
    """Of the tree; 0 goes on in the row's own blocks."""


class Query(NamedTuple):
    """Neighbouring tokens of the step, which a sequence ends with."""

    view: int
    start: int
    length: int


class Write(NamedTuple):
    """A token's key and value at a position of a view."""

    view: int
    position: int
    token: int


class Branches:
    """The blocks of some layers."""

    def __init__(
        self,
        parts: WorkerParts,
        backend: AttentionBackend,
        layers: Collection[int],
        tree: TokenTree,
    ) -> None:
        """`layers`: which of the layout's; `tree`: the largest."""
        self._parts = parts
        self._backend = backend
        self._most = len(tree.paths) - 1
        depth = max(tree.depths)
        found = {
            index: [slot for slot, layer in enumerate(group.layers) if layer in layers]
            for index, group in enumerate(parts.layout.groups)
        }
        self._slots = {index: slots for index, slots in found.items() if slots}
        self._lengths = {
            index: _blocks_of(depth, self._group(index).block_size) for index in self._slots
        }
        self._group_of = {
            layer: index for index in self._slots for layer in self._group(index).layers
        }
        self._layers = sorted(layers)
        room = [
            self._group(index).spec.spare // (self._most * length)
            for index, length in self._lengths.items()
        ]
        self.num_rows = min(room, default=0)
        """Rows that may have a tree in one step."""

    def _group(self, index: int) -> GroupLayout:
        return self._parts.layout.groups[index]

    def _spare(self, index: int, planted: Planted) -> Ints:
        """Return the spare blocks of a tree's paths but the first, [paths, blocks of a path]."""
        length = self._lengths[index]
        first = self._parts.layout.first_spare(index) + planted.number * self._most * length
        return first + np.arange((len(planted.tree.paths) - 1) * length).reshape(-1, length)

    def _own(self, index: int, row: int, planted: Planted, origin: int = 0) -> torch.Tensor:
        """Return the row's own blocks in which a tree lies."""
        size = self._group(index).block_size
        first = planted.end - origin
        place = origin // size + first // size
        count = (first + max(planted.tree.depths)) // size - first // size + 1
        return self._parts.batch.tables[index, row, place : place + count].long()

    def _copy(self, index: int, sources: torch.Tensor, targets: torch.Tensor) -> None:
        for slot in self._slots[index]:
            memory = self._parts.memory[self._group(index).pool, slot]
            memory[targets] = memory[sources]

    def plant(self, rows: Sequence[View]) -> None:
        """Let the branches of trees begin where their rows have come to."""
        for index in self._slots:
            sources = []
            targets = []
            for row, origin, planted, _ in rows:
                if planted is not None and len(planted.tree.paths) > 1:
                    targets.append(self._spare(index, planted)[:, 0])
                    sources.append(
                        self._own(index, row, planted, origin)[:1].expand(len(targets[-1]))
                    )
            if targets:
                self._copy(index, torch.cat(sources), self._to_device(np.concatenate(targets)))

    def keep(self, row: int, planted: Planted, path: torch.Tensor) -> None:
        """Let the row go on from what one path has cached, [] int64 on the device."""
        for index in self._slots:
            own = self._own(index, row, planted)
            spare = self._to_device(self._spare(index, planted)[:, : len(own)])
            self._copy(index, torch.cat((own[None], spare))[path], own)

    def _to_device(self, numbers: Ints) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._parts.device)

    def attention(self, views: Sequence[View], queries: Sequence[Query], writes: Ints) -> list[Any]:
        """Return what each layer's attention is given: queries in the order of the step's tokens,
        and [n, 3] columns of `Write`.
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
        at, position, token = writes.T
        lengths = start + count
        width = max(int(lengths.max()) - 1, int(position.max())) // size + 1
        places = np.array([each.origin // size for each in views])[:, None] + np.arange(width)
        places = np.minimum(places, all_tables.shape[1] - 1)
        rows = torch.tensor([each.row for each in views], device=device)
        tables = all_tables[rows[:, None], torch.from_numpy(places).to(device)]
        for number, each in enumerate(views):
            if each.planted is not None and each.path:
                first = (each.planted.end - each.origin) // size
                own = self._spare(index, each.planted)[each.path - 1][: width - first]
                tables[number, first : first + len(own)] = torch.from_numpy(own).to(tables)
        on_device = self._to_device
        where = on_device(position)
        slots = tables[on_device(at), where // size].long() * size + where % size
        return self._backend.prepare(
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
            )
        )
