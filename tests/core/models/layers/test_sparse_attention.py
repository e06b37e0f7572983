"""Selection of tokens by an indexer, and attention to the selected ones."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.attention_backends.paged.backend import make_backend
from builtin_plugins.attention_backends.reference.backend import ReferenceAttention
from builtin_plugins.attention_backends.torch_sdpa.backend import TorchAttention
from core.contracts.attention import AttentionInputs
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import IndexKeys
from core.models.layers.sparse_attention import (
    IndexPlan,
    SparsePlan,
    exact_lengths,
    long_queries,
)
from core.models.ops import selection
from core.models.ops.selection import select_tokens
from core.testing.attention_oracle import PagedSequences

TOP_K = 8
SIZE = 6
HEADS = 3
STEPS = ({0: 5, 1: 8, 2: 9, 3: 30}, {0: 1, 1: 1, 2: 1, 3: 1}, {2: 1, 0: 12, 3: 4}, {4: 3, 3: 1})
"""Tokens per sequence: prompts on both sides of `TOP_K`, decoding, chunks that pass it."""


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), max_size=6), st.integers(1, 20))
def test_long_queries_are_those_that_see_more_than_top_k(
    sequences: list[tuple[int, int]], top_k: int
) -> None:
    starts = [0, *accumulate(count for _, count in sequences)]
    lengths = [before + count for before, count in sequences]
    found = {
        (each.sequence, token, each.position + token - each.start)
        for each in long_queries(starts, lengths, top_k)
        for token in range(each.start, each.end)
    }
    assert found == {
        (i, starts[i] + at, before + at)
        for i, (before, count) in enumerate(sequences)
        for at in range(count)
        if before + at + 1 > top_k
    }


class IndexedSequences:
    """Sequences with index keys in blocks dealt at random."""

    def __init__(self, block_size: int) -> None:
        self._random = torch.Generator().manual_seed(block_size)
        self._size = block_size
        per_sequence = -(-64 // block_size)
        self._tables = 1 + torch.randperm(5 * per_sequence, generator=self._random).view(5, -1)
        self._cache = torch.full((5 * per_sequence + 1, block_size, SIZE), float("nan"))
        self._keys = [torch.empty(0, SIZE)] * 5

    def step(self, counts: dict[int, int]) -> tuple[torch.Tensor | None, list[list[int]]]:
        """Return the selection of a step, and the one of plain scores of each long query."""
        num_tokens = sum(counts.values())
        query = torch.randn(num_tokens, HEADS, SIZE, generator=self._random)
        weights = torch.randn(num_tokens, HEADS, generator=self._random)
        key = torch.randn(num_tokens, SIZE, generator=self._random)
        slots = []
        expected = []
        at = 0
        for sequence, count in counts.items():
            keys = self._keys[sequence] = torch.cat([self._keys[sequence], key[at : at + count]])
            for token in range(count):
                position = len(keys) - count + token
                blocks = self._tables[sequence, position // self._size]
                slots.append(int(blocks) * self._size + position % self._size)
                seen = keys[: position + 1]
                scores = weights[at + token] @ (query[at + token] @ seen.T).relu()
                if len(seen) > TOP_K:
                    best = scores.argsort(descending=True, stable=True)[:TOP_K]
                    expected.append(sorted(best.tolist()))
            at += count
        inputs = AttentionInputs(
            query_starts=[0, *accumulate(counts.values())],
            kv_lens=[len(self._keys[sequence]) for sequence in counts],
            block_table=self._tables[list(counts)].int(),
            slots=torch.tensor(slots),
            block_size=self._size,
            spec=IndexKeys(1, SIZE, "float32", top_k=TOP_K),
        )
        plan = IndexPlan(select_tokens, inputs, TOP_K)
        return plan.select(query, weights, key, self._cache), expected


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("limit", [1, 1 << 22])
def test_selection_is_that_of_all_scores(
    block_size: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "MAX_PRODUCTS", limit)
    monkeypatch.setattr(selection, "KEYS_PER_PIECE", min(limit * 8, 4096))
    sequences = IndexedSequences(block_size)
    for counts in STEPS:
        found, expected = sequences.step(counts)
        assert ([] if found is None else found.tolist()) == expected


def test_short_sequences_select_nothing() -> None:
    found, _ = IndexedSequences(4).step({0: 3, 1: TOP_K})
    assert found is None


@pytest.mark.parametrize("backend", [ReferenceAttention, TorchAttention, make_backend])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
def test_long_queries_attend_to_selected_tokens_only(
    backend: Any, block_size: int, kv_dtype: str
) -> None:
    params = AttentionParams(4, 1, 16, 0.25, value_size=12)
    dtype = getattr(torch, kv_dtype)
    made = backend()
    sequences = PagedSequences(made, params, block_size=block_size, num_sequences=5, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    keys: dict[int, torch.Tensor] = {}
    for counts in STEPS:
        inputs, query, key, _ = sequences.tokens(counts)
        chosen = []
        expected = []
        for i, (sequence, count) in enumerate(counts.items()):
            begin = inputs.query_starts[i]
            own = key[begin : begin + count, 0].float()
            own = keys[sequence] = torch.cat([keys.get(sequence, own[:0]), own])
            for token in range(count):
                seen = torch.arange(len(own) - count + token + 1)
                if len(seen) > TOP_K:
                    seen = torch.randperm(len(seen), generator=generator)[:TOP_K].sort().values
                    chosen.append(seen)
                scores = query[begin + token].float() @ own[seen].T * params.scale
                expected.append(scores.softmax(-1) @ own[seen, :12])
        plan = SparsePlan(made, inputs, TOP_K)
        selected = torch.stack(chosen).int() if chosen else None
        out = plan.attend(params, query, key, sequences.cache, selected)
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(
            out.float(), torch.stack(expected), atol=tolerance, rtol=tolerance
        )


def test_lengths_of_unverified_drafts_are_those_on_the_device() -> None:
    inputs: Any = SimpleNamespace(kv_lens=[9, 30], slack=[2, 0], lengths=torch.tensor([7, 30]))
    assert exact_lengths(inputs) == [7, 30]
    inputs.slack = None
    assert exact_lengths(inputs) == [9, 30]
