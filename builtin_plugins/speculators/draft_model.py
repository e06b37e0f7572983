"""A small model of the same vocabulary guesses: what it finds most likely, token by token, or
several at a time.

It has caching layers of its own behind the model's, in the same pools. Its keys and values of a row
are computed when the row is first guessed for, and from then on those of new tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from builtin_plugins.speculators.own_layers import OwnLayers, kept, positions_of
from builtin_plugins.speculators.trees import Grown, fill, likely_tokens
from core.api import ConfigError, ForwardBatch, TokenTree
from core.models.layers.loading import load_alike

if TYPE_CHECKING:
    from core.api import (
        DraftRow,
        EngineConfig,
        GeneratingModel,
        LayerKV,
        ModelSource,
        SpeculativeConfig,
    )
    from core.contracts.scheduling import LoadedParts, WorkerParts
    from core.step import NewRow


@dataclass(slots=True)
class _Known:
    """What is cached of a row."""

    owner: NewRow
    count: int = 0
    """Leading tokens whose keys and values are ..."""
    guesses: list[int] = field(default_factory=list)
    """... and what was guessed behind them, likewise."""


class DraftModel:
    """Holds the model; knows of every row what is cached."""

    finds = False
    branches = True

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        """Raises `ConfigError` where `model` is missing, or is no model."""
        if not settings.model:
            raise ConfigError(
                "--speculative-config: the method draft_model needs a `model`, a folder or hub id."
            )
        ranks = config.parallel.tensor_parallel_size
        if settings.draft_tensor_parallel_size not in (0, ranks):
            raise ConfigError(
                "--speculative-config.draft_tensor_parallel_size "
                f"{settings.draft_tensor_parallel_size} is not "
                f"--tensor-parallel-size {ranks}: the draft model is split as the model is. Leave "
                "it out."
            )
        own = replace(
            config.model,
            model=settings.model,
            revision=settings.revision or None,
            quantization=None,
        )
        self._config = replace(config, model=own)
        source = registry.find_model(settings.model, self._config)
        if source is None:
            raise ConfigError(
                f"--speculative-config.model: no plugin knows the model {settings.model!r}."
            )
        self._source: ModelSource = source
        self._tree = settings.tree
        self._registry = registry
        self._limit = min(settings.max_model_len or source.max_model_len, source.max_model_len)
        self._chunk = config.scheduler.max_num_batched_tokens or 2048
        self._known: dict[int, _Known] = {}

    def loaded(self, parts: LoadedParts) -> list[LayerKV]:
        """Load the model as the engine's was; return its caching layers.

        Raises `ConfigError` for one that does not fit.
        """
        made = load_alike(self._config, self._source, self._registry, parts)
        self._model: GeneratingModel = made  # type: ignore[assignment]  # its vocabulary says that it generates
        if made.vocab_size != parts.model.vocab_size:
            raise ConfigError(
                f"--speculative-config.model {self._source.name!r} has {made.vocab_size} tokens, "
                "the model "
                f"{parts.model.vocab_size}: both must have the same vocabulary."
            )
        self._backend = parts.context.attention
        return kept(made.kv_layers, f"--speculative-config.model {self._source.name!r}")

    def attach(self, parts: WorkerParts) -> None:
        """Take the cache."""
        self._own = OwnLayers(parts, self._backend, self._tree)
        self._model.bind_kv(self._own.caches)
        self._forward = parts.wrap(self._model)
        self._batch = parts.batch
        self._device = parts.device

    def drafts(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return the most likely tokens of each row."""
        drafts: list[list[int]] = [[] for _ in rows]
        places = [
            i
            for i, each in enumerate(rows)
            if each.most and len(each.tokens) + each.most <= self._limit
        ]
        if not places:
            return drafts
        asked = [rows[i] for i in places]
        numbers = [each.row for each in asked]
        ends = [len(each.tokens) for each in asked]
        branching = any(each.tree is not None for each in asked)

        def begin(count: int) -> list[list[int]]:
            return self._behind(numbers, [self._fresh(each) for each in asked], count)

        def go_on(level: list[Grown], tokens: list[list[int]], count: int) -> list[list[int]]:
            positions, plans = self._own.further(asked, [0] * len(asked), ends, level)
            ids = [tokens[node.row][node.place - 1] for node in level]
            own = [numbers[node.row] for node in level]
            ones = [1] * len(level)
            return self._compute(own, ids, positions, ones, plans, count, branching=branching)

        for i, each, draft in zip(places, asked, fill(asked, begin, go_on), strict=True):
            drafts[i] = draft
            first = (each.tree or TokenTree.chain(each.most)).paths[0]
            self._known[each.row].guesses = [draft[place - 1] for place in first[:-1]]
        return drafts

    def _fresh(self, asked: DraftRow) -> tuple[int, list[int]]:
        """Return the first position that is not cached, and the tokens from there on; take them for
        cached.
        """
        known = self._known.get(asked.row)
        if known is None or known.owner is not asked.owner:
            known = self._known[asked.row] = _Known(asked.owner)
        behind = zip(known.guesses, asked.tokens[known.count :].tolist(), strict=False)
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], behind))
        # The last one is computed in any case: what follows it is wanted.
        start = min(known.count + right, len(asked.tokens) - 1)
        known.count = len(asked.tokens)
        known.guesses = []
        return start, asked.tokens[start:].tolist()

    def _behind(
        self, rows: list[int], fresh: list[tuple[int, list[int]]], count: int
    ) -> list[list[int]]:
        """Compute tokens from a position on, for each of these rows; return what is likely behind
        the last one of each.
        """
        best: list[list[int]] = [[]] * len(rows)
        while fresh:
            room = self._chunk
            chunk = []
            rest = []
            for start, tokens in fresh:
                now = tokens[:room]
                chunk.append((start, now))
                rest.append((start + len(now), tokens[len(now) :]))
                room -= len(now)
            places = [i for i, (_, now) in enumerate(chunk) if now]
            own = [rows[i] for i in places]
            starts = [chunk[i][0] for i in places]
            counts = [len(chunk[i][1]) for i in places]
            ids = [token for i in places for token in chunk[i][1]]
            plans = self._own.attention(own, [0] * len(own), starts, counts)
            for i, tokens in zip(
                places, self._compute(own, ids, starts, counts, plans, count), strict=True
            ):
                best[i] = tokens
            fresh = rest if any(tokens for _, tokens in rest) else []
        return best

    def _compute(
        self,
        rows: list[int],
        ids: list[int],
        starts: list[int],
        counts: list[int],
        plans: list[Any],
        count: int,
        *,
        branching: bool = False,
    ) -> list[list[int]]:
        """Return the `count` likeliest tokens behind the last of each row's `counts` tokens."""
        batch = ForwardBatch(
            input_ids=torch.tensor(ids, device=self._device),
            positions=torch.from_numpy(positions_of(np.array(starts), np.array(counts))).to(
                self._device
            ),
            attention=plans,
            rows=rows,
            starts=starts,
            counts=counts,
            prompt_lens=[0] * len(rows),
            token_ids=self._batch.token_ids,
            branched=branching,
        )
        hidden = self._forward(batch)
        if len(hidden) > len(rows):
            hidden = hidden[torch.tensor(counts, device=self._device).cumsum(0) - 1]
        best: list[list[int]] = likely_tokens(self._model.logits(hidden), count).tolist()
        return best
