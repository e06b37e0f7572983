"""Selection of blocks of keys by an indexer, and attention to the selected ones."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch

from builtin_plugins.attention_backends.paged.backend import make_backend
from builtin_plugins.attention_backends.reference.backend import ReferenceAttention
from builtin_plugins.attention_backends.torch_sdpa.backend import TorchAttention
from core.contracts.attention import AttentionInputs
from core.errors import ModelError
from core.model_spec.attention import AttentionSpec, BlockIndexerSpec, NormSpec
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import IndexKeys
from core.model_spec.rope import RopeSpec
from core.models.layers import block_sparse_attention
from core.models.layers.block_sparse_attention import BlockIndexPlan, BlockSparsePlan
from core.testing.attention_oracle import PagedSequences

SIZE = 6
KV_HEADS = 2
SPEC = BlockIndexerSpec(
    heads=KV_HEADS, size=SIZE, block_size=3, top_blocks=3, local_blocks=1, norm=NormSpec("rms")
)
STEPS = ({0: 5, 1: 9, 2: 10, 3: 40}, {0: 1, 1: 1, 2: 1, 3: 1}, {2: 1, 0: 12, 3: 4}, {4: 3, 3: 1})
"""Tokens per sequence: prompts on both sides of `top_k`, decoding, chunks that pass it."""


def best_blocks(query: torch.Tensor, seen: torch.Tensor) -> list[list[int]]:
    """Return the blocks of one query [heads, size], by the scores of all keys that it sees."""
    scores = query @ seen.T
    blocks = torch.stack([part.amax(-1) for part in scores.split(SPEC.block_size, dim=-1)], dim=-1)
    blocks[:, -1] = float("inf")
    return blocks.topk(SPEC.top_blocks).indices.sort().values.tolist()


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("limit", [1, 1 << 22])
def test_selection_is_that_of_all_scores(
    block_size: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_sparse_attention, "MAX_PRODUCTS", limit)
    monkeypatch.setattr(block_sparse_attention, "KEYS_PER_PIECE", min(limit * 8, 4096))
    random = torch.Generator().manual_seed(block_size)
    per_sequence = -(-64 // block_size)
    tables = 1 + torch.randperm(5 * per_sequence, generator=random).view(5, -1)
    cache = torch.full((5 * per_sequence + 1, block_size, SIZE), float("nan"))
    keys = [torch.empty(0, SIZE)] * 5
    for counts in STEPS:
        query = torch.randn(sum(counts.values()), KV_HEADS, SIZE, generator=random)
        key = torch.randn(len(query), SIZE, generator=random)
        starts = [0, *accumulate(counts.values())]
        slots = []
        expected = []
        for begin, (sequence, count) in zip(starts, counts.items(), strict=False):
            first = len(keys[sequence])
            own = keys[sequence] = torch.cat([keys[sequence], key[begin : begin + count]])
            for token, position in enumerate(range(first, first + count), begin):
                block = int(tables[sequence, position // block_size])
                slots.append(block * block_size + position % block_size)
                if position >= SPEC.top_k:
                    expected.append(best_blocks(query[token], own[: position + 1]))
        inputs = AttentionInputs(
            query_starts=starts,
            kv_lens=[len(keys[sequence]) for sequence in counts],
            block_table=tables[list(counts)].int(),
            slots=torch.tensor(slots),
            block_size=block_size,
            spec=IndexKeys(1, SIZE, "float32", top_k=SPEC.top_k, selects_blocks=True),
        )
        found = BlockIndexPlan(inputs, SPEC.top_k).select_blocks(query, key, cache, SPEC)
        assert ([] if found is None else found.sort().values.tolist()) == expected


@pytest.mark.parametrize("backend", [ReferenceAttention, TorchAttention, make_backend])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("limit", [1, 1 << 24])
def test_long_queries_attend_to_selected_blocks_only(
    backend: Any, block_size: int, kv_dtype: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_sparse_attention, "MAX_GATHERED", limit)
    params = AttentionParams(4, KV_HEADS, 16, 0.25)
    dtype = getattr(torch, kv_dtype)
    made = backend()
    sequences = PagedSequences(made, params, block_size=block_size, num_sequences=5, dtype=dtype)
    random = torch.Generator().manual_seed(0)
    cached: dict[int, torch.Tensor] = {}
    for counts in STEPS:
        inputs, query, key, value = sequences.tokens(counts)
        chosen = []
        expected = []
        for begin, (sequence, count) in zip(inputs.query_starts, counts.items(), strict=False):
            own = torch.stack([key, value], dim=1)[begin : begin + count].float()
            own = cached[sequence] = torch.cat([cached.get(sequence, own[:0]), own])
            for token in range(count):
                position = len(own) - count + token
                seen = [torch.arange(position + 1)] * KV_HEADS
                if position >= SPEC.top_k:
                    last = position // SPEC.block_size
                    others = [torch.randperm(last, generator=random) for _ in range(KV_HEADS)]
                    blocks = [[*each[: SPEC.top_blocks - 1].tolist(), last] for each in others]
                    chosen.append(torch.tensor(blocks))
                    seen = [
                        torch.tensor([i for i in seen[0].tolist() if i // SPEC.block_size in each])
                        for each in blocks
                    ]
                for head in range(4):
                    keys, values = own[seen[head // 2], :, head // 2].unbind(1)
                    scores = query[begin + token, head].float() @ keys.T * params.scale
                    expected.append(scores.softmax(-1) @ values)
        plan = BlockSparsePlan(made, inputs, SPEC.top_k)
        selected = torch.stack(chosen) if chosen else None
        own_cache = (params, query, key, value, sequences.cache)
        out = plan.attend_blocks(*own_cache, selected, SPEC.block_size)
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(
            out.float().flatten(0, 1), torch.stack(expected), atol=tolerance, rtol=tolerance
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_heads": 4}, "index_n_heads: got 2; expected num_key_value_heads 4"),
        ({"window": 8}, "an indexer of blocks supports no window"),
        ({"rope": RopeSpec(size=8, theta=1e4)}, "index_head_dim: got 6; expected at least"),
    ],
)
def test_other_attention_is_refused(changes: dict[str, Any], words: str) -> None:
    facts = {"heads": 4, "kv_heads": 2, "head_size": 8, "rope": RopeSpec(size=4, theta=1e4)}
    AttentionSpec(**facts, indexer=SPEC)
    with pytest.raises(ModelError, match=words):
        AttentionSpec(**{**facts, **changes}, indexer=SPEC)
