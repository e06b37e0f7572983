"""Drives an attention backend over paged sequences and says what it should have answered.

The truth is computed densely in float64. The cache starts as NaN everywhere, blocks are dealt at
random, and table entries that no token may see any more point at a block of NaN: a backend that
reads one position too many shows it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from core.contracts.attention import AttentionBackend, AttentionInputs
from core.model_spec.attention_params import AttentionParams, LookAheadSpan
from core.model_spec.kv import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    KVSpec,
    LatentKeys,
    SlidingWindow,
)
from core.models.dtypes import dtype_name


def dense_attention(
    params: AttentionParams,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    start: int,
    span: tuple[int, int] = (0, 0),
) -> torch.Tensor:
    """Return attention [n, heads, size of a value] in float64; key and value begin at position 0,
    query at `start`. Tokens of `span`, from one position up to another, see all of it.
    """
    bias = params.distance_bias
    per_kv = params.heads // params.kv_heads
    out = torch.empty(*query.shape[:2], value.shape[-1], dtype=torch.float64)
    for i in range(len(query)):
        position = start + i
        first = first_visible(params, position)
        end = position + 1 if params.causal else len(key)
        if span[0] <= position < span[1]:
            end = span[1]
        for head in range(params.heads):
            keys, values = (x[first:end, head // per_kv].double() for x in (key, value))
            scores = keys @ query[i, head].double() * params.scale
            if params.softcap is not None:
                scores = params.softcap * torch.tanh(scores / params.softcap)
            if params.alibi is not None:
                distance = position - torch.arange(first, end)
                scores = scores - params.alibi[head].double() * distance
            if bias is not None:
                reach = bias.shape[1] // 2
                scores = (
                    scores
                    + bias[
                        head, (torch.arange(first, end) - position).clamp(-reach, reach) + reach
                    ].double()
                )
            if params.sinks is not None:
                scores = torch.cat([scores, params.sinks[head : head + 1].double()])
            out[i, head] = scores.softmax(dim=0)[: len(keys)] @ values
    return out


def first_visible(params: AttentionParams, position: int) -> int:
    """Return the first position that the token at `position` sees."""
    if params.window is not None:
        return max(0, position - params.window + 1)
    return 0 if params.chunk is None else position // params.chunk * params.chunk


class PagedSequences:
    """Some sequences in one cache of a backend, fed step by step with random queries, keys and
    values.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        params: AttentionParams,
        *,
        block_size: int = 16,
        num_sequences: int = 1,
        max_len: int = 64,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        spec: KVSpec | None = None,
        stored: Callable[
            [torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]
        ] = lambda key, value: (
            key,
            value,
        ),
    ) -> None:
        """`spec`: of a cache of another dtype than the queries; `stored`: what it makes of keys and
        values.
        """
        self.backend = backend
        self.params = params
        self.block_size = block_size
        self.dtype = dtype
        self._random = torch.Generator().manual_seed(seed)
        self._spec = spec or _spec(params, dtype)
        self._stored = stored
        per_sequence = -(-max_len // block_size)
        blocks = list(range(1, 1 + per_sequence * num_sequences))  # block 0 stays NaN
        random.Random(seed).shuffle(blocks)
        self._blocks = [
            blocks[i * per_sequence : (i + 1) * per_sequence] for i in range(num_sequences)
        ]
        shape = backend.cache_shape(self._spec, len(blocks) + 1, block_size)
        cached: torch.dtype = getattr(torch, self._spec.dtype)  # all bits set make no number
        self.cache = (
            torch.full((math.prod(shape) * cached.itemsize,), 255, dtype=torch.uint8)
            .view(cached)
            .view(shape)
        )
        empty = torch.empty(0, params.kv_heads, params.head_size, dtype=dtype)
        self._keys = [empty] * num_sequences
        self._values = [empty[..., : params.value_size]] * num_sequences

    def step(
        self, counts: Mapping[int, int], spans: Mapping[int, tuple[int, int]] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give sequences the next tokens, by index and in this order; return the backend's answer
        and the truth. The tokens of a sequence's span, of positions, see all of it.
        """
        inputs, query, key, value = self.tokens(counts)
        plan = self.backend.prepare(inputs)
        spans = spans or {}
        if spans:
            ahead = []
            for sequence, token, length in zip(
                counts, inputs.query_starts, inputs.kv_lens, strict=False
            ):
                offset = token - (length - counts[sequence])
                start, end = spans.get(sequence, (0, 0))
                first = max(start + offset, token)
                if first < end + offset:
                    ahead.append(LookAheadSpan(first, end + offset, end))
            plan = self.backend.look_ahead(plan, ahead)  # type: ignore[attr-defined]
        got = self.backend.attend(self.params, query, key, value, self.cache, plan)
        truth = []
        at = 0
        for sequence, count in counts.items():
            keys = self._keys[sequence]
            values = self._values[sequence]
            truth.append(
                dense_attention(
                    self.params,
                    query[at : at + count],
                    keys,
                    values,
                    len(keys) - count,
                    spans.get(sequence, (0, 0)),
                )
            )
            at += count
        return got, torch.cat(truth)

    def branch(self, first: int, second: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Let one sequence go on by a token that another shares, which has none yet, and then each
        by one of its own.

        Return the backend's answer and the truth: of the token they share, and of those of the
        first and the second.
        """
        start = len(self._keys[first])
        size = self.block_size
        whole = start // size
        begun = self._blocks[first][start // size]
        self.cache[self._blocks[second][whole]] = self.cache[begun]
        self._blocks[second] = self._blocks[first][:whole] + self._blocks[second][whole:]
        self._keys[second] = self._keys[first]
        self._values[second] = self._values[first]
        key = self._draw(3, self.params.kv_heads)
        query = self._draw(3, self.params.heads)
        value = (self._draw(3, self.params.kv_heads) if self.params.value_size is None else key)[
            ..., : self.params.value_size
        ]
        for sequence, tokens in ((first, [0, 1]), (second, [0, 2])):
            self._keys[sequence] = torch.cat([self._keys[sequence], key[tokens]])
            self._values[sequence] = torch.cat([self._values[sequence], value[tokens]])
        inputs = AttentionInputs(
            query_starts=[0, 2, 3],
            kv_lens=[start + 2, start + 2],
            block_table=torch.tensor(
                [self._table(first, start), self._table(second, start + 1)], dtype=torch.int32
            ),
            slots=torch.tensor(
                [self._slot(each, start + at) for each in (first, second) for at in range(2)]
            ),
            block_size=size,
            spec=self._spec,
            slot_tokens=torch.tensor([0, 1, 0, 2]),
        )
        got = self.backend.attend(
            self.params, query, key, value, self.cache, self.backend.prepare(inputs)
        )
        spans = ((first, query[:2], start), (second, query[2:], start + 1))
        truth = [
            dense_attention(self.params, q, self._keys[i], self._values[i], at)
            for i, q, at in spans
        ]
        return got, torch.cat(truth)

    def tokens(
        self, counts: Mapping[int, int]
    ) -> tuple[AttentionInputs, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw the next tokens; return a step's inputs and its query, key and value."""
        starts = []
        query_starts = [0]
        slots = []
        keys = []
        values = []
        for sequence, count in counts.items():
            start = len(self._keys[sequence])
            starts.append(start)
            query_starts.append(query_starts[-1] + count)
            slots += [self._slot(sequence, position) for position in range(start, start + count)]
            keys.append(self._draw(count, self.params.kv_heads))
            own = (
                keys[-1]
                if self.params.value_size is not None
                else self._draw(count, self.params.kv_heads)
            )
            values.append(own[..., : self.params.value_size])
            key, value = self._stored(keys[-1], own)
            self._keys[sequence] = torch.cat([self._keys[sequence], key])
            self._values[sequence] = torch.cat(
                [self._values[sequence], value[..., : self.params.value_size]]
            )
        tables = [
            self._table(sequence, start) for sequence, start in zip(counts, starts, strict=True)
        ]
        inputs = AttentionInputs(
            query_starts=query_starts,
            kv_lens=[len(self._keys[sequence]) for sequence in counts],
            block_table=torch.tensor(tables, dtype=torch.int32),
            slots=torch.tensor(slots),
            block_size=self.block_size,
            spec=self._spec,
        )
        return (
            inputs,
            self._draw(query_starts[-1], self.params.heads),
            torch.cat(keys),
            torch.cat(values),
        )

    def _table(self, sequence: int, start: int) -> list[int]:
        """Return the block table of a sequence that starts at `start` in this step, with what comes
        after
        replaced by NaN.
        """
        first = first_visible(self.params, start) // self.block_size
        past = -(-len(self._keys[sequence]) // self.block_size)
        return [block if first <= i < past else 0 for i, block in enumerate(self._blocks[sequence])]

    def _slot(self, sequence: int, position: int) -> int:
        return (
            self._blocks[sequence][position // self.block_size] * self.block_size
            + position % self.block_size
        )

    def _draw(self, count: int, heads: int) -> torch.Tensor:
        return torch.randn(count, heads, self.params.head_size, generator=self._random).to(
            self.dtype
        )


class CrossSequences:
    """Sequences that attend to inputs of unequal length, each encoded in the first step that names
    the sequence.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        params: AttentionParams,
        lengths: Sequence[int],
        *,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        assert not params.causal, "a cross layer hides nothing"
        self.backend = backend
        self.params = params
        self.block_size = block_size
        self.dtype = dtype
        self._random = torch.Generator().manual_seed(seed)
        name = dtype_name(dtype)
        self._spec = CrossAttention(params.kv_heads, params.head_size, name, max_len=max(lengths))
        each = -(-max(lengths) // block_size)
        self._table = torch.zeros(len(lengths), each, dtype=torch.int32)
        numbers = list(range(1, 1 + sum(-(-length // block_size) for length in lengths)))
        random.Random(seed).shuffle(numbers)
        for i, length in enumerate(lengths):
            held = -(-length // block_size)
            self._table[i, :held] = torch.tensor([numbers.pop() for _ in range(held)])
        num_blocks = int(self._table.max()) + 1
        self.cache = torch.full(
            backend.cache_shape(self._spec, num_blocks, block_size), float("nan"), dtype=dtype
        )
        self._keys, self._values = (
            [self._draw(length, params.kv_heads) for length in lengths] for _ in range(2)
        )
        self._written: set[int] = set()

    def step(self, counts: Mapping[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Give sequences their next queries, by index and in this order; return the backend's
        answer and the truth.
        """
        entering = [sequence for sequence in counts if sequence not in self._written]
        self._written.update(entering)
        query = self._draw(sum(counts.values()), self.params.heads)
        inputs = AttentionInputs(
            query_starts=[0, *accumulate(counts.values())],
            kv_lens=[len(self._keys[sequence]) for sequence in counts],
            block_table=self._table[list(counts)],
            slots=torch.cat([torch.empty(0, dtype=torch.int64), *map(self._slots, entering)]),
            block_size=self.block_size,
            spec=self._spec,
        )
        nothing = self._draw(0, self.params.kv_heads)
        key, value = (
            torch.cat([nothing, *(x[i] for i in entering)]) for x in (self._keys, self._values)
        )
        got = self.backend.attend(
            self.params, query, key, value, self.cache, self.backend.prepare(inputs)
        )
        spans = zip(counts, inputs.query_starts, inputs.query_starts[1:], strict=False)
        truth = [
            dense_attention(self.params, query[a:b], self._keys[i], self._values[i], 0)
            for i, a, b in spans
        ]
        return got, torch.cat(truth)

    def _slots(self, sequence: int) -> torch.Tensor:
        positions = torch.arange(len(self._keys[sequence]))
        blocks = self._table[sequence, positions // self.block_size].to(torch.int64)
        return blocks * self.block_size + positions % self.block_size

    def _draw(self, count: int, heads: int) -> torch.Tensor:
        return torch.randn(count, heads, self.params.head_size, generator=self._random).to(
            self.dtype
        )


def _spec(params: AttentionParams, dtype: torch.dtype) -> KVSpec:
    facts: Any = (params.kv_heads, params.head_size, dtype_name(dtype))
    if params.value_size is not None:
        return LatentKeys(*facts)
    if params.window is not None:
        return SlidingWindow(*facts, window=params.window)
    return (
        FullAttention(*facts) if params.chunk is None else ChunkedLocal(*facts, chunk=params.chunk)
    )
