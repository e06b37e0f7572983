"""Worker half for encoder states: those of new requests, and the ones that a step's tokens read.

To attention backends a row is one sequence for each view of its tokens (`state_views`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from builtin_plugins.features.multimodal.state_views import (
    StateView,
    groups_of,
    offsets_of,
    views_of,
)
from core.api.models import AttentionInputs
from core.model_spec.kv import CrossAttention
from core.model_spec.tower import EncodedItem, ItemStates

if TYPE_CHECKING:
    from builtin_plugins.features.multimodal.item_rows import ItemRow
    from builtin_plugins.features.multimodal.messages import RequestItem, RequestItems
    from core.api.execution import WorkerParts
    from core.api.models import AttentionBackend, ForwardBatch

Encode = Callable[["RequestItems", "RequestItem"], EncodedItem]
"""Returns an item of a request encoded, from the cache or the tower."""
PADDING_ROW: Final = -1
"""Row of the block tables without a request."""


class Query(NamedTuple):
    """Consecutive tokens of a row with one view."""

    row: int
    offset: int
    length: int
    num_tokens: int
    feeds: bool


class CrossStates:
    """Fills the batch of a model with gated cross attention."""

    def __init__(self, parts: WorkerParts, backend: AttentionBackend) -> None:
        self._parts = parts
        self._backend = backend
        groups = parts.layout.groups
        self._groups = {i: g for i, g in enumerate(groups) if isinstance(g.spec, CrossAttention)}
        sizes = [group.block_size for group in self._groups.values()]
        self._block_size = max(sizes, default=1)

    def fill(self, batch: ForwardBatch, rows: dict[int, ItemRow], encode: Encode) -> None:
        """Set the states of new rows and what the step's tokens read; `rows` have items."""
        if not rows:
            return
        entering = [self._states(rows[new.row], encode) for new in batch.entering]
        queries = self._queries(batch, rows)
        reads = [query.row != PADDING_ROW for query in queries]
        feeds = [query.feeds for query in queries]
        counts = torch.tensor([query.num_tokens for query in queries])
        device = self._parts.device
        batch.item_states = ItemStates(
            torch.cat(entering) if entering else None,
            *(
                torch.tensor(flags).repeat_interleave(counts)[:, None].to(device, non_blocking=True)
                for flags in (reads, feeds)
            ),
        )
        plans = list(batch.attention)
        for index, group in self._groups.items():
            plan = self._plan(index, batch, queries)
            for layer in group.layers:
                plans[layer] = plan
        batch.attention = plans

    def _states(self, row: ItemRow, encode: Encode) -> torch.Tensor:
        """Return the states [positions, hidden] of a new row, and note the views of its tokens."""
        items = row.items.items
        encoded = [encode(row.items, item) for item in items]
        num_visible = [len(each.embeddings) - each.num_padding for each in encoded]
        row.views = views_of(items, num_visible, self._block_size)
        visible = [each.embeddings[:n] for each, n in zip(encoded, num_visible, strict=True)]
        padding = [each.embeddings[n:] for each, n in zip(encoded, num_visible, strict=True)]
        states = visible[0].new_zeros(row.new.num_encoder_positions, visible[0].shape[1])
        everything = torch.cat([*visible, *padding])
        states[: len(everything)] = everything
        later = zip(groups_of(items)[1:], offsets_of(items, self._block_size)[1:], strict=False)
        for group, offset in later:
            own = torch.cat([visible[index] for index in group])
            states[offset : offset + len(own)] = own
        return states

    def _queries(self, batch: ForwardBatch, rows: dict[int, ItemRow]) -> list[Query]:
        """Return the step's tokens, split where their views change."""
        queries = []
        for row, start, count in zip(batch.rows, batch.starts, batch.counts, strict=True):
            if row not in rows:
                queries.append(Query(PADDING_ROW, 0, 1, count, feeds=False))
                continue
            views: list[StateView] = rows[row].views
            firsts = [view.first_token for view in views]
            position = start
            while position < start + count:
                number = bisect_right(firsts, position) - 1
                end = min([start + count, *firsts[number + 1 : number + 2]])
                _, offset, length = views[number]
                queries.append(Query(row, offset, length, end - position, feeds=number > 0))
                position = end
        return queries

    def _plan(self, index: int, batch: ForwardBatch, queries: Sequence[Query]) -> Any:
        """Return the attention plan of a KV group."""
        group = self._groups[index]
        size = group.block_size
        device = self._parts.device
        tables = self._parts.batch.tables[index]
        slots = [
            self._slots(tables[new.row], new.num_encoder_positions, size) for new in batch.entering
        ]
        width = max(-(-query.length // size) for query in queries)
        firsts = torch.tensor([query.offset // size for query in queries])
        columns = (firsts[:, None] + torch.arange(width)).clamp(max=tables.shape[1] - 1)
        rows = torch.tensor([query.row for query in queries])
        counts = [query.num_tokens for query in queries]
        lengths = [query.length for query in queries]
        starts = [0, *accumulate(counts)]
        return self._backend.prepare(
            AttentionInputs(
                query_starts=starts,
                kv_lens=lengths,
                block_table=tables[rows[:, None].to(device), columns.to(device)],
                slots=torch.cat(slots) if slots else tables.new_empty(0, dtype=torch.int64),
                block_size=size,
                spec=group.spec,  # type: ignore[arg-type]  # of cross attention
                starts=torch.tensor(starts[:-1], device=device),
                counts=torch.tensor(counts, device=device),
                lengths=torch.tensor(lengths, device=device),
            )
        )

    def _slots(self, table: torch.Tensor, count: int, size: int) -> torch.Tensor:
        """Return the slots of a row's encoder positions."""
        positions = torch.arange(count, device=table.device)
        return table[positions // size].long() * size + positions % size


def encoder_embeddings(
    batch: ForwardBatch, rows: dict[int, ItemRow], encode: Encode
) -> ItemStates | None:
    """Return the embeddings of placeholder tokens in the encoder inputs of new rows."""
    found = [
        encode(rows[new.row].items, item).embeddings
        for new in batch.entering
        if new.row in rows
        for item in rows[new.row].items.items
    ]
    return ItemStates(torch.cat(found)) if found else None
