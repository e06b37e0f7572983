"""A small model of the same vocabulary guesses: what it finds most likely, token by token.

It has caching layers of its own behind the model's, in the same pools. Its keys and values of a row are computed when the row
is first guessed for, and from then on those of new tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from builtin_plugins.speculators.own_layers import OwnLayers, kept, positions_of
from core.api import ConfigError, ForwardBatch
from core.nn.loading import load_alike

if TYPE_CHECKING:
    from core.api import DraftRow, EngineConfig, GeneratingModel, LayerKV, ModelSource, SpeculativeConfig
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

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        """Raises `ConfigError` where `model` is missing, or is no model."""
        if not settings.model:
            raise ConfigError("--speculative-config: the method draft_model needs a `model`, a folder or hub id.")
        ranks = config.parallel.tensor_parallel_size
        if settings.draft_tensor_parallel_size not in (0, ranks):
            raise ConfigError(
                f"--speculative-config.draft_tensor_parallel_size {settings.draft_tensor_parallel_size} is not "
                f"--tensor-parallel-size {ranks}: the draft model is split as the model is. Leave it out."
            )
        own = replace(config.model, model=settings.model, revision=settings.revision or None, quantization=None)
        self._config = replace(config, model=own)
        source = registry.find_model(settings.model, self._config)
        if source is None:
            raise ConfigError(f"--speculative-config.model: no plugin knows the model {settings.model!r}.")
        self._source: ModelSource = source
        self._registry = registry
        self._limit = min(settings.max_model_len or source.max_model_len, source.max_model_len)
        self._chunk = config.scheduler.max_num_batched_tokens or 2048
        self._known: dict[int, _Known] = {}

    def loaded(self, parts: LoadedParts) -> list[LayerKV]:
        """Load the model as the engine's was; return its caching layers. Raises `ConfigError` for one that does not fit."""
        made = load_alike(self._config, self._source, self._registry, parts)
        self._model: GeneratingModel = made  # type: ignore[assignment]  # its vocabulary says that it generates
        if made.vocab_size != parts.model.vocab_size:
            raise ConfigError(
                f"--speculative-config.model {self._source.name!r} has {made.vocab_size} tokens, the model "
                f"{parts.model.vocab_size}: both must have the same vocabulary."
            )
        self._backend = parts.context.attention
        return kept(made.kv_layers, f"--speculative-config.model {self._source.name!r}")

    def attach(self, parts: WorkerParts) -> None:
        """Take the cache."""
        self._own = OwnLayers(parts, self._backend)
        self._model.bind_kv(self._own.caches)
        self._forward = parts.wrap(self._model)
        self._batch, self._device = parts.batch, parts.device

    def drafts(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return the most likely tokens of each row."""
        drafts: list[list[int]] = [[] for _ in rows]
        lengths = [len(each.tokens) for each in rows]
        active = [i for i, each in enumerate(rows) if lengths[i] + each.most <= self._limit]
        fresh = {i: self._fresh(rows[i]) for i in active}
        for ahead in range(max((rows[i].most for i in active), default=0)):
            active = [i for i in active if ahead < rows[i].most]
            best = self._next([rows[i].row for i in active], [fresh[i] for i in active])
            for i, token in zip(active, best, strict=True):
                drafts[i].append(token)
                fresh[i] = lengths[i] + ahead, [token]
                if ahead + 1 < rows[i].most:
                    self._known[rows[i].row].guesses.append(token)
        return drafts

    def _fresh(self, asked: DraftRow) -> tuple[int, list[int]]:
        """Return the first position that is not cached, and the tokens from there on; take them for cached."""
        known = self._known.get(asked.row)
        if known is None or known.owner is not asked.owner:
            known = self._known[asked.row] = _Known(asked.owner)
        behind = zip(known.guesses, asked.tokens[known.count :].tolist(), strict=False)
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], behind))
        # The last one is computed in any case: what follows it is wanted.
        start = min(known.count + right, len(asked.tokens) - 1)
        known.count, known.guesses = len(asked.tokens), []
        return start, asked.tokens[start:].tolist()

    def _next(self, rows: list[int], fresh: list[tuple[int, list[int]]]) -> list[int]:
        """Compute tokens from a position on, for each of these rows; return what follows the last one of each."""
        best = [0] * len(rows)
        while fresh:
            room, chunk, rest = self._chunk, [], []
            for start, tokens in fresh:
                now = tokens[:room]
                chunk.append((start, now))
                rest.append((start + len(now), tokens[len(now) :]))
                room -= len(now)
            places = [i for i, (_, now) in enumerate(chunk) if now]
            found = self._compute([rows[i] for i in places], [chunk[i] for i in places])
            for i, token in zip(places, found, strict=True):
                best[i] = token
            fresh = rest if any(tokens for _, tokens in rest) else []
        return best

    def _compute(self, rows: list[int], chunk: list[tuple[int, list[int]]]) -> list[int]:
        counts, starts = [len(tokens) for _, tokens in chunk], [start for start, _ in chunk]
        batch = ForwardBatch(
            input_ids=torch.tensor([token for _, tokens in chunk for token in tokens], device=self._device),
            positions=torch.from_numpy(positions_of(np.array(starts), np.array(counts))).to(self._device),
            attention=self._own.attention(rows, [0] * len(rows), starts, counts),
            rows=rows,
            starts=starts,
            counts=counts,
            prompt_lens=[0] * len(rows),
            token_ids=self._batch.token_ids,
        )
        hidden = self._forward(batch)
        if len(hidden) > len(rows):
            hidden = hidden[torch.tensor(counts, device=self._device).cumsum(0) - 1]
        best: list[int] = self._model.logits(hidden).argmax(dim=-1).tolist()
        return best
