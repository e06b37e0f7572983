"""The worker half where guesses are trees: several tokens are tried in each place, and the path
that was sampled holds.

To the kernel the nodes of a tree are guesses one behind the other, of which its first path comes
first. Here they get the positions, the keys and values and the places in the noise of where they
stand in the tree; and once it is sampled what follows each of them, the path of which every token
is the one that was sampled is moved to where a chain would have it.

A row of which features or logits processors take part in a step has a chain: what these read of its
text would be another branch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from builtin_plugins.speculators.branches import Branches, Planted, Query, View, spare_blocks
from builtin_plugins.speculators.drafting import Drafting
from builtin_plugins.speculators.pace import Ints, Pace
from builtin_plugins.speculators.trees import exponents, likeliest
from core.api import ConfigError, CrossAttention, RecurrentState, TokenTree

if TYPE_CHECKING:
    from core.api import (
        DraftRow,
        EngineConfig,
        ForwardBatch,
        LayerKV,
        SampleRows,
        SpeculativeConfig,
        Speculator,
    )
    from core.contracts.scheduling import LoadedParts, Sampled, WorkerParts

MOST_ROWS: Final = 4
"""That have trees in one step: each needs blocks for its branches, which requests do not get."""


class TreeDrafting(Drafting):
    """Asks for as many of the tree's nodes as are granted, the likeliest ones."""

    def __init__(
        self,
        speculator: Speculator,
        settings: SpeculativeConfig,
        config: EngineConfig,
        tree: TokenTree,
        explain: Callable[[Exception], str],
    ) -> None:
        """Raises `ConfigError` for a speculator that fills no trees."""
        num_rows = config.scheduler.max_num_seqs or 1
        if not getattr(speculator, "branches", False):
            raise ConfigError(
                "--speculative-config.speculative_token_tree has branches, and the method "
                f"{settings.method} guesses one token "
                "behind the other. Leave it out, or choose eagle, eagle3, mtp, medusa or "
                "draft_model."
            )
        self._trees: Final = likeliest(tree)
        super().__init__(speculator, settings, num_rows, explain)
        self._whole: Final = tree
        self.spare_blocks: Final = spare_blocks(
            tree, config.cache.block_size, min(num_rows, MOST_ROWS)
        )
        self._planted: dict[int, Planted] = {}
        """What rows have in this step."""
        self._chained: Set[int] = frozenset()
        """Rows that logits processors take part in."""
        self._made: tuple[ForwardBatch, torch.Tensor] | None = None
        self._counts: dict[int, torch.Tensor] = {}
        """By row, how many guesses of this step were looked at, [] int64 on the device."""
        self._known_paths: dict[int, _Paths] = {}
        """By number of nodes."""

    def _make_pace(self, settings: SpeculativeConfig, num_rows: int) -> Pace:
        depths, behind = exponents(self._trees)
        return Pace(
            num_rows, settings.most, adaptive=settings.adaptive, depths=depths, behind=behind
        )

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Return the speculator's layers. Raises `ConfigError` for a model whose layers keep other
        than keys and values.

        Likewise for an attention backend that keeps no key in several places.
        """
        for layer in parts.model.kv_layers:
            if isinstance(layer.spec, (RecurrentState, CrossAttention)):
                raise ConfigError(
                    "--speculative-config.speculative_token_tree has branches, which "
                    f"{parts.source.name} cannot check: "
                    f"{layer.name} keeps {type(layer.spec).__name__}. State num_speculative_tokens "
                    "instead."
                )
        self._backend = parts.context.attention
        if not getattr(self._backend, "slot_tokens", False):
            raise ConfigError(
                "--speculative-config.speculative_token_tree has branches, which need an attention "
                "backend that keeps a key in "
                f"several places; {type(self._backend).__name__} does not. Choose another "
                "--attention-backend."
            )
        return super().loaded(parts)

    def attach(self, parts: WorkerParts) -> None:
        """Take rows, tokens and the blocks of branches."""
        super().attach(parts)
        self._layers = range(len(parts.model.kv_layers))
        self._branches = Branches(parts, self._backend, self._layers, self._whole)
        self._device = parts.device

    # --- before the model

    def begin(self, payload: bytes | None) -> None:
        """Write guesses."""
        self._planted = {}
        self._made = None
        self._counts = {}
        super().begin(payload)

    def _shaped(self, asked: DraftRow) -> DraftRow:
        tree = self._trees[asked.most]
        if (
            self._is_chained(asked.row)
            or len(tree.paths) == 1
            or len(self._planted) == self._branches.num_rows
        ):
            return replace(asked, most=min(asked.most, max(self._whole.depths)))
        self._planted[asked.row] = Planted(tree, len(self._planted), len(asked.tokens) - 1)
        return replace(asked, tree=tree)

    def _is_chained(self, row: int) -> bool:
        owner = self._batch.requests[row]
        if owner is None or row in self._chained:
            return True
        sampling = owner.sampling
        return bool(owner.features or sampling.structured_outputs or sampling.extra_args)

    def _sound(self, draft: Sequence[int], asked: DraftRow) -> list[int]:
        """Return a tree whose tokens are all of the vocabulary, or its first path up to one that is
        not.
        """
        sound = super()._sound(draft, asked)
        if asked.tree is None or len(sound) == len(asked.tree):
            return sound
        self._planted.pop(asked.row)
        return sound[: len(asked.tree.paths[0])]

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Let the nodes of trees stand behind their parents."""
        super().before_forward(batch, payload)
        self._planted = {
            row: each for row, each in self._planted.items() if row in self._found
        }  # none, had it raised
        if not self._planted:
            return
        firsts = np.cumsum(batch.counts) - batch.counts
        starts = batch.positions[torch.from_numpy(firsts).to(self._device)].tolist()
        views: list[View] = []
        queries: list[Query] = []
        writes: list[Ints] = []
        for row, first, start, count in zip(
            batch.rows, firsts.tolist(), starts, batch.counts, strict=True
        ):
            planted = self._planted.get(row)
            if planted is None:
                queries.append(Query(len(views), start, count))
                writes.append(_written(len(views), start, first + np.arange(count)))
                views.append(View(row))
                continue
            tree = planted.tree
            seen = -1
            batch.positions[first : first + count] = torch.tensor(
                [start + depth for depth in tree.depths]
            )
            for number, path in enumerate(tree.paths):
                places = np.array([0, *path])
                own = int((places > seen).sum())
                queries.append(Query(len(views), start + len(places) - own, own))
                writes.append(_written(len(views), start, first + places))
                views.append(View(row, 0, planted, number))
                seen = path[-1]
        self._branches.plant([view for view in views if view.planted is not None and not view.path])
        prepared = self._branches.attention(views, queries, np.concatenate(writes))
        batch.attention = [*prepared, *batch.attention[len(prepared) :]]
        batch.branched = True

    # --- behind it

    def after_forward(
        self, batch: ForwardBatch, hidden: torch.Tensor, payload: bytes | None
    ) -> None:
        """Show the speculator what the model has made, where that has its order already."""
        if self._planted:
            self._made = batch, hidden
        else:
            super().after_forward(batch, hidden, payload)

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None
    ) -> torch.Tensor:
        """Let the noise of each node be that of its position."""
        for first, planted in self._places(rows):
            depths = torch.tensor(
                [planted.end + 1 + depth for depth in planted.tree.depths], device=self._device
            )
            rows.length_index[first : first + len(depths)] = depths
        return logits

    def _places(self, rows: SampleRows) -> list[tuple[int, Planted]]:
        """Return where each tree begins among the points."""
        if not self._planted:
            return []
        both = enumerate(zip(rows.rows, rows.points, strict=True))
        return [
            (at, self._planted[row])
            for at, (row, point) in both
            if point == 0 and row in self._planted
        ]

    def verify(
        self,
        rows: SampleRows,
        guessed: torch.Tensor,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        payload: bytes | None,
    ) -> tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what was sampled along that path of each tree which holds for longest."""
        right = guessed == tokens
        if not self._planted:
            return tokens, right
        batch, hidden = self._made  # type: ignore[misc]  # the model has run
        order = torch.arange(len(tokens), device=self._device)
        made = torch.arange(len(hidden), device=self._device)
        begins = dict(
            zip(batch.rows, (np.cumsum(batch.counts) - batch.counts).tolist(), strict=True)
        )
        for first, planted in self._places(rows):
            row = rows.rows[first]
            paths = self._paths(planted.tree)
            best, length = paths.longest(guessed[first:], tokens[first:])
            way = paths.places[best]
            order[first + 1 : first + 1 + len(way)] = first + way
            made[begins[row] + 1 : begins[row] + 1 + len(way)] = begins[row] + way
            right[first : first + len(planted.tree)] = (
                torch.arange(len(planted.tree), device=self._device) < length
            )
            self._counts[row] = paths.looked[best, length]
            self._branches.keep(row, planted, best)
        super().after_forward(batch, hidden[made], payload)
        return tokens[order], right, order

    def _paths(self, tree: TokenTree) -> _Paths:
        known = self._known_paths.get(len(tree))
        if known is None:
            known = self._known_paths[len(tree)] = _Paths(tree, self._device)
        return known

    def sampled(self, sampled: Sampled, payload: bytes | None) -> None:
        """Keep what was sampled, and whose text is read."""
        super().sampled(sampled, payload)
        self._chained = sampled.rows.processed

    def _looked_at(self, rows: Sequence[int], drafted: Ints, right: Ints) -> Ints:
        """Count the likelier siblings of right guesses as well, and all children of the last one
        that was right.
        """
        looked = super()._looked_at(rows, drafted, right)
        for at, row in enumerate(rows):
            if row in self._counts:
                looked[at] = int(self._counts[row])
        return looked

    def _ready(self, rows: Sequence[int]) -> Ints:
        free = np.array([not self._is_chained(row) for row in rows])
        free &= np.cumsum(free) <= self._branches.num_rows
        return np.where(free, self._most, max(self._whole.depths))


class _Paths:
    """The paths of a tree, on a device."""

    def __init__(self, tree: TokenTree, device: str) -> None:
        deepest = max(tree.depths)
        children = tree.children
        parents = {child: place for place, those in enumerate(children) for child in those}
        self._parents = torch.tensor(
            [parents[place] for place in range(1, len(tree) + 1)], device=device
        )
        self.places = torch.tensor(
            [path + [0] * (deepest - len(path)) for path in tree.paths], device=device
        )
        """[paths, deepest], filled up with place 0."""
        looked = []
        for path in tree.paths:
            ranks = [tree.nodes[place - 1][-1] + 1 for place in path]
            counts = [
                sum(ranks[:held]) + len(children[place]) for held, place in enumerate((0, *path))
            ]
            looked.append(counts + [0] * (deepest - len(path)))
        self.looked = torch.tensor(looked, device=device)
        """[paths, deepest + 1]: guesses that were looked at where so many of a path hold."""

    def longest(
        self, guessed: torch.Tensor, sampled: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the path that holds for longest, and for how many tokens, both []; `guessed` are
        those of places 1 on.
        """
        right = guessed[: len(self._parents)] == sampled[self._parents]
        right = torch.cat((right.new_zeros(1), right))
        lengths = right[self.places].cumprod(dim=1).sum(dim=1)
        best = lengths.argmax()
        return best, lengths[best]


def _written(view: int, start: int, tokens: Ints) -> Ints:
    """Return `Write` of neighbouring positions."""
    return np.stack((np.full_like(tokens, view), start + np.arange(len(tokens)), tokens), axis=1)
