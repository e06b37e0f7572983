"""Worker half for draft trees: verifies several tokens for a position, and keeps one path.

The kernel sees a flattened tree, first path first. This module gives each node the position, KV
slots and sampling noise of its depth. After sampling, the longest accepted path is moved to where
a chain would have it.

Rows with features or logits processors get a chain, because these read the text of one branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from builtin_plugins.features.speculation.draft_length import DraftLengthController, Ints
from builtin_plugins.features.speculation.subtrees import likeliest_subtrees, node_exponents
from builtin_plugins.features.speculation.worker import SpeculationWorker
from builtin_plugins.speculators.api import (
    PlacedTree,
    Query,
    TokenTree,
    TreeSlots,
    View,
    num_spare_blocks,
)
from core.api import ConfigError
from core.model_spec.kv import CrossAttention, RecurrentState, SlidingRows
from core.models.layers.state import prepare

if TYPE_CHECKING:
    from builtin_plugins.speculators.api import DraftRow, SpeculativeConfig, Speculator
    from core.api import EngineConfig
    from core.api.execution import LoadedParts, Sampled, WorkerParts
    from core.api.models import ForwardBatch
    from core.api.sampling import SampleRows
    from core.model_spec.kv import LayerKV

FLAG: Final = "--speculative-config.speculative_token_tree"
MAX_TREE_ROWS: Final = 4
"""Rows with trees in one step: each needs blocks for its branches, in addition to requests'."""


class TreeSpeculationWorker(SpeculationWorker):
    """Drafts the likeliest nodes of the tree, as many as are granted."""

    def __init__(
        self,
        speculator: Speculator,
        settings: SpeculativeConfig,
        config: EngineConfig,
        tree: TokenTree,
        explain: Callable[[Exception], str],
    ) -> None:
        """Raises `ConfigError` for a speculator without tree support."""
        num_rows = config.scheduler.max_num_seqs or 1
        if not getattr(speculator, "supports_trees", False):
            raise ConfigError(
                f"{FLAG}: got a tree with branches; the method {settings.method} drafts chains "
                "only. Remove the tree, or use eagle, eagle3, mtp, medusa or draft_model."
            )
        self._subtrees: Final = likeliest_subtrees(tree)
        super().__init__(speculator, settings, num_rows, explain)
        self._full_tree: Final = tree
        self.spare_blocks: Final = num_spare_blocks(
            tree, config.cache.block_size, min(num_rows, MAX_TREE_ROWS)
        )
        self._placed: dict[int, PlacedTree] = {}
        """Trees of this step, by row."""
        self._processed_rows: Set[int] = frozenset()
        """Rows with logits processors."""
        self._forward: tuple[ForwardBatch, torch.Tensor] | None = None
        """Batch and hidden states of this step."""
        self._verified_counts: dict[int, torch.Tensor] = {}
        """Verified draft tokens of a row in this step, [] int64 on the device."""
        self._paths_by_size: dict[int, _Paths] = {}

    def _make_controller(self, settings: SpeculativeConfig, num_rows: int) -> DraftLengthController:
        depths, num_siblings = node_exponents(self._subtrees)
        return DraftLengthController(
            num_rows,
            settings.max_draft_tokens,
            adaptive=settings.adaptive,
            depths=depths,
            num_siblings=num_siblings,
        )

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Return the speculator's KV layers.

        Raises `ConfigError` for models with other states than keys and values, and for attention
        backends that cannot write a token to several slots.
        """
        for layer in parts.model.kv_layers:
            if isinstance(layer.spec, (RecurrentState, CrossAttention, SlidingRows)):
                raise ConfigError(
                    f"{FLAG}: got a tree with branches; {parts.source.name} cannot verify it, "
                    f"because {layer.name} has a {type(layer.spec).__name__}. Use "
                    "num_speculative_tokens instead."
                )
        backend = parts.context.attention
        self._prepare = partial(prepare, backend, parts.context.ops)
        if not getattr(backend, "slot_tokens", False):
            raise ConfigError(
                f"{FLAG}: got a tree with branches; the attention backend "
                f"{type(backend).__name__} cannot write a token to several slots. Use "
                "another --attention-backend."
            )
        return super().loaded(parts)

    def attach(self, parts: WorkerParts) -> None:
        """Remember the batch, and allocate the slots of branches."""
        super().attach(parts)
        self._layers = range(len(parts.model.kv_layers))
        self._slots = TreeSlots(parts, self._prepare, self._layers, self._full_tree)
        self._device = parts.device

    # --- before the forward pass

    def begin(self, payload: bytes | None) -> None:
        """Write the granted draft tokens."""
        self._placed = {}
        self._forward = None
        self._verified_counts = {}
        super().begin(payload)

    def _shape(self, row: DraftRow) -> DraftRow:
        tree = self._subtrees[row.max_draft_tokens]
        if (
            self._needs_chain(row.row)
            or len(tree.paths) == 1
            or len(self._placed) == self._slots.num_rows
        ):
            longest = max(self._full_tree.depths)
            return replace(row, max_draft_tokens=min(row.max_draft_tokens, longest))
        last_position = len(row.tokens) - 1
        self._placed[row.row] = PlacedTree(tree, len(self._placed), last_position)
        return replace(row, tree=tree)

    def _needs_chain(self, row: int) -> bool:
        owner = self._batch.requests[row]
        if owner is None or row in self._processed_rows:
            return True
        sampling = owner.sampling
        return bool(owner.features or sampling.structured_outputs or sampling.extra_args)

    def _valid_prefix(self, draft: Sequence[int], row: DraftRow) -> list[int]:
        """Return a whole valid tree, or the valid prefix of its first path."""
        valid = super()._valid_prefix(draft, row)
        if row.tree is None or len(valid) == len(row.tree):
            return valid
        self._placed.pop(row.row)
        return valid[: len(row.tree.paths[0])]

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Give tree nodes their positions and attention inputs."""
        super().before_forward(batch, payload)
        # Without drafts if the speculator raised.
        self._placed = {row: placed for row, placed in self._placed.items() if row in self._drafts}
        if not self._placed:
            return
        first_tokens = np.cumsum(batch.counts) - batch.counts
        starts = batch.positions[torch.from_numpy(first_tokens).to(self._device)].tolist()
        views: list[View] = []
        queries: list[Query] = []
        writes: list[Ints] = []
        for row, first, start, count in zip(
            batch.rows, first_tokens.tolist(), starts, batch.counts, strict=True
        ):
            placed = self._placed.get(row)
            if placed is None:
                queries.append(Query(len(views), start, count))
                writes.append(_writes_of(len(views), start, first + np.arange(count)))
                views.append(View(row))
                continue
            tree = placed.tree
            positions = torch.tensor([start + depth for depth in tree.depths])
            batch.positions[first : first + count] = positions
            last_computed = -1
            for path_index, path in enumerate(tree.paths):
                nodes = np.array([0, *path])
                # Nodes shared with an earlier path are computed there.
                num_new = int((nodes > last_computed).sum())
                queries.append(Query(len(views), start + len(nodes) - num_new, num_new))
                writes.append(_writes_of(len(views), start, first + nodes))
                views.append(View(row, 0, placed, path_index))
                last_computed = path[-1]
        self._slots.begin([view for view in views if view.placed is not None and not view.path])
        prepared = self._slots.attention(views, queries, np.concatenate(writes))
        batch.attention = [*prepared, *batch.attention[len(prepared) :]]
        batch.branched = True

    # --- after it

    def after_forward(
        self, batch: ForwardBatch, hidden: torch.Tensor, payload: bytes | None
    ) -> None:
        """Pass on the hidden states; with trees, not before `verify` has ordered them."""
        if self._placed:
            self._forward = batch, hidden
        else:
            super().after_forward(batch, hidden, payload)

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None
    ) -> torch.Tensor:
        """Give each node the sampling noise of its position."""
        for first, placed in self._tree_points(rows):
            lengths = [placed.last_position + 1 + depth for depth in placed.tree.depths]
            rows.length_index[first : first + len(lengths)] = torch.tensor(
                lengths, device=self._device
            )
        return logits

    def _tree_points(self, rows: SampleRows) -> list[tuple[int, PlacedTree]]:
        """Return the first sample point of each tree."""
        if not self._placed:
            return []
        points = enumerate(zip(rows.rows, rows.points, strict=True))
        return [
            (index, self._placed[row])
            for index, (row, point) in points
            if point == 0 and row in self._placed
        ]

    def verify(
        self,
        rows: SampleRows,
        draft_tokens: torch.Tensor,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        payload: bytes | None,
    ) -> tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the sampled tokens along the longest accepted path of each tree."""
        is_accepted = draft_tokens == tokens
        if not self._placed:
            return tokens, is_accepted
        batch, hidden = self._forward  # type: ignore[misc]  # the forward pass has run
        point_order = torch.arange(len(tokens), device=self._device)
        token_order = torch.arange(len(hidden), device=self._device)
        first_tokens = (np.cumsum(batch.counts) - batch.counts).tolist()
        first_token_of = dict(zip(batch.rows, first_tokens, strict=True))
        for first, placed in self._tree_points(rows):
            row = rows.rows[first]
            first_token = first_token_of[row]
            paths = self._paths(placed.tree)
            best, length = paths.longest(draft_tokens[first:], tokens[first:])
            nodes = paths.nodes[best]
            num_nodes = len(nodes)
            point_order[first + 1 : first + 1 + num_nodes] = first + nodes
            token_order[first_token + 1 : first_token + 1 + num_nodes] = first_token + nodes
            is_accepted[first : first + len(placed.tree)] = (
                torch.arange(len(placed.tree), device=self._device) < length
            )
            self._verified_counts[row] = paths.num_verified[best, length]
            self._slots.accept(row, placed, best)
        super().after_forward(batch, hidden[token_order], payload)
        return tokens[point_order], is_accepted, point_order

    def _paths(self, tree: TokenTree) -> _Paths:
        paths = self._paths_by_size.get(len(tree))
        if paths is None:
            paths = _Paths(tree, self._device)
            self._paths_by_size[len(tree)] = paths
        return paths

    def sampled(self, sampled: Sampled, payload: bytes | None) -> None:
        """Remember the sampled tokens, and the rows with logits processors."""
        super().sampled(sampled, payload)
        self._processed_rows = sampled.rows.processed

    def _num_verified(self, rows: Sequence[int], num_drafted: Ints, accepted: Ints) -> Ints:
        """Also count the more likely siblings of accepted nodes, and the last one's children."""
        verified = super()._num_verified(rows, num_drafted, accepted)
        for index, row in enumerate(rows):
            if row in self._verified_counts:
                verified[index] = int(self._verified_counts[row])
        return verified

    def _num_available(self, rows: Sequence[int]) -> Ints:
        has_tree = np.array([not self._needs_chain(row) for row in rows])
        has_tree &= np.cumsum(has_tree) <= self._slots.num_rows
        return np.where(has_tree, self.max_draft_tokens, max(self._full_tree.depths))


class _Paths:
    """The paths of a tree as device tensors."""

    def __init__(self, tree: TokenTree, device: str) -> None:
        max_depth = max(tree.depths)
        children = tree.children
        parents = {child: node for node, nodes in enumerate(children) for child in nodes}
        self._parents = torch.tensor(
            [parents[node] for node in range(1, len(tree) + 1)], device=device
        )
        self.nodes = torch.tensor(
            [path + [0] * (max_depth - len(path)) for path in tree.paths], device=device
        )
        """Nodes of each path [paths, max. depth], padded with node 0."""
        num_verified = []
        for path in tree.paths:
            ranks = [tree.nodes[node - 1][-1] + 1 for node in path]
            counts = [
                sum(ranks[:accepted]) + len(children[node])
                for accepted, node in enumerate((0, *path))
            ]
            num_verified.append(counts + [0] * (max_depth - len(path)))
        self.num_verified = torch.tensor(num_verified, device=device)
        """Verified draft tokens by path and accepted length, [paths, max. depth + 1]."""

    def longest(
        self, draft: torch.Tensor, sampled: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the path with the longest accepted prefix, and its length, [] each.

        `draft`: tokens of the nodes from 1 on.
        """
        is_accepted = draft[: len(self._parents)] == sampled[self._parents]
        is_accepted = torch.cat((is_accepted.new_zeros(1), is_accepted))
        lengths = is_accepted[self.nodes].cumprod(dim=1).sum(dim=1)
        best = lengths.argmax()
        return best, lengths[best]


def _writes_of(view: int, start: int, tokens: Ints) -> Ints:
    """Return `Write` columns of tokens at consecutive positions."""
    return np.stack((np.full_like(tokens, view), start + np.arange(len(tokens)), tokens), axis=1)
