"""Method `draft_model`: a small model with the target's vocabulary drafts tokens or trees.

Its KV layers share the target's block pools. A row's prefix is computed when the row is first
drafted, and then only its new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from builtin_plugins.speculators.contract import TokenTree
from builtin_plugins.speculators.draft_kv_layers import (
    DraftKVLayers,
    consecutive_positions,
    draft_layers,
)
from builtin_plugins.speculators.draft_trees import LevelNode, fill_trees, top_tokens
from core.api import ConfigError
from core.api.models import ForwardBatch
from core.models.layers.loading import load_companion_model
from core.models.layers.state import prepare

if TYPE_CHECKING:
    from builtin_plugins.speculators.contract import DraftRow, SpeculativeConfig
    from core.api import EngineConfig, Registry
    from core.api.execution import LoadedParts, NewRow, WorkerParts
    from core.api.models import GeneratingModel, ModelSource
    from core.model_spec.kv import LayerKV


@dataclass(slots=True)
class _CachedRow:
    """The cached tokens of a row."""

    owner: NewRow
    count: int = 0
    """Known tokens in the cache."""
    draft: list[int] = field(default_factory=list)
    """Draft tokens in the cache after them."""


class DraftModel:
    """Runs the draft model, and tracks which tokens of each row are cached."""

    is_lookup = False
    supports_trees = True

    def __init__(
        self, config: EngineConfig, settings: SpeculativeConfig, registry: Registry
    ) -> None:
        """Raises `ConfigError` without a usable `model`."""
        if not settings.model:
            raise ConfigError(
                "--speculative-config: the method draft_model needs a `model`, a folder or hub id."
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
        self._max_length = min(settings.max_model_len or source.max_model_len, source.max_model_len)
        self._chunk_size = config.scheduler.max_num_batched_tokens or 2048
        self._cached_rows: dict[int, _CachedRow] = {}

    def loaded(self, parts: LoadedParts) -> list[LayerKV]:
        """Load the draft model. Raises `ConfigError` for another vocabulary."""
        model = load_companion_model(self._config, self._source, self._registry, parts)
        self._model: GeneratingModel = model  # type: ignore[assignment]  # it has a vocabulary
        if model.vocab_size != parts.model.vocab_size:
            raise ConfigError(
                f"--speculative-config.model {self._source.name!r}: got a vocabulary of "
                f"{model.vocab_size} tokens; expected the target's {parts.model.vocab_size}."
            )
        self._prepare = partial(prepare, parts.context.attention, parts.context.ops)
        return draft_layers(model.kv_layers, f"--speculative-config.model {self._source.name!r}")

    def attach(self, parts: WorkerParts) -> None:
        """Bind the draft model's KV cache."""
        self._kv_layers = DraftKVLayers(parts, self._prepare, self._tree)
        self._model.bind_kv(self._kv_layers.caches)
        self._forward = parts.wrap(self._model)
        self._batch = parts.batch
        self._device = parts.device

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return the top tokens of each row."""
        drafts: list[list[int]] = [[] for _ in rows]
        indices = [
            index
            for index, row in enumerate(rows)
            if row.max_draft_tokens and len(row.tokens) + row.max_draft_tokens <= self._max_length
        ]
        if not indices:
            return drafts
        draft_rows = [rows[index] for index in indices]
        numbers = [row.row for row in draft_rows]
        ends = [len(row.tokens) for row in draft_rows]
        branched = any(row.tree is not None for row in draft_rows)

        def first_level(count: int) -> list[list[int]]:
            new_tokens = [self._new_tokens(row) for row in draft_rows]
            return self._compute_chunked(numbers, new_tokens, count)

        def next_level(
            level: list[LevelNode], tokens: list[list[int]], count: int
        ) -> list[list[int]]:
            origins = [0] * len(draft_rows)
            positions, plans = self._kv_layers.level_attention(draft_rows, origins, ends, level)
            token_ids = [tokens[node.row][node.node - 1] for node in level]
            level_rows = [numbers[node.row] for node in level]
            ones = [1] * len(level)
            return self._compute(
                level_rows, token_ids, positions, ones, plans, count, branched=branched
            )

        filled = fill_trees(draft_rows, first_level, next_level)
        for index, row, draft in zip(indices, draft_rows, filled, strict=True):
            drafts[index] = draft
            first_path = (row.tree or TokenTree.chain(row.max_draft_tokens)).paths[0]
            self._cached_rows[row.row].draft = [draft[node - 1] for node in first_path[:-1]]
        return drafts

    def _new_tokens(self, row: DraftRow) -> tuple[int, list[int]]:
        """Return the first uncached position and the tokens from it on. Marks them as cached."""
        cached = self._cached_rows.get(row.row)
        if cached is None or cached.owner is not row.owner:
            cached = _CachedRow(row.owner)
            self._cached_rows[row.row] = cached
        pairs = zip(cached.draft, row.tokens[cached.count :].tolist(), strict=False)
        num_accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        # The last token is always computed, because its logits are needed.
        start = min(cached.count + num_accepted, len(row.tokens) - 1)
        cached.count = len(row.tokens)
        cached.draft = []
        return start, row.tokens[start:].tolist()

    def _compute_chunked(
        self, rows: list[int], new_tokens: list[tuple[int, list[int]]], count: int
    ) -> list[list[int]]:
        """Compute (start, tokens) of each row in chunks. Return the top next tokens."""
        best: list[list[int]] = [[]] * len(rows)
        while new_tokens:
            budget = self._chunk_size
            chunk = []
            rest = []
            for start, tokens in new_tokens:
                now = tokens[:budget]
                chunk.append((start, now))
                rest.append((start + len(now), tokens[len(now) :]))
                budget -= len(now)
            indices = [index for index, (_, now) in enumerate(chunk) if now]
            chunk_rows = [rows[index] for index in indices]
            starts = [chunk[index][0] for index in indices]
            counts = [len(chunk[index][1]) for index in indices]
            token_ids = [token for index in indices for token in chunk[index][1]]
            origins = [0] * len(chunk_rows)
            plans = self._kv_layers.attention(chunk_rows, origins, starts, counts)
            likely = self._compute(chunk_rows, token_ids, starts, counts, plans, count)
            for index, tokens in zip(indices, likely, strict=True):
                best[index] = tokens
            new_tokens = rest if any(tokens for _, tokens in rest) else []
        return best

    def _compute(
        self,
        rows: list[int],
        token_ids: list[int],
        starts: list[int],
        counts: list[int],
        plans: list[Any],
        count: int,
        *,
        branched: bool = False,
    ) -> list[list[int]]:
        """Return the `count` top tokens after each row's `counts` tokens."""
        positions = consecutive_positions(np.array(starts), np.array(counts))
        batch = ForwardBatch(
            input_ids=torch.tensor(token_ids, device=self._device),
            positions=torch.from_numpy(positions).to(self._device),
            attention=plans,
            rows=rows,
            starts=starts,
            counts=counts,
            prompt_lens=[0] * len(rows),
            token_ids=self._batch.token_ids,
            branched=branched,
        )
        hidden = self._forward(batch)
        if len(hidden) > len(rows):
            hidden = hidden[torch.tensor(counts, device=self._device).cumsum(0) - 1]
        best: list[list[int]] = top_tokens(self._model.logits(hidden), count).tolist()
        return best
