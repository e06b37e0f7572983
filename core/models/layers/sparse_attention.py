"""Sparse attention over latents: an indexer's keys select the tokens that a query attends to.

Index keys and latents are two KV groups with block tables of their own. Queries that see at most
`top_k` tokens attend to all of them, by the attention backend. The others ("long" queries) attend
to `top_k` selected positions. Their latents are gathered from the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from core.contracts.attention import AttentionInputs
from core.model_spec.kv import LatentKeys

if TYPE_CHECKING:
    from core.contracts.attention import AttentionBackend
    from core.model_spec.attention_params import AttentionParams

KEYS_PER_PIECE: Final = 4096
"""Index keys gathered at a time; on a CPU they stay in its cache."""
MAX_PRODUCTS: Final = 1 << 22
"""Maximum products of index queries and keys in memory at a time."""
BLOCK_MULTIPLE: Final = 16
"""Divisor of the block size of gathered latents, for the kernels' tiles."""


class LongQueries(NamedTuple):
    """Consecutive tokens of one sequence that see more than `top_k` tokens."""

    sequence: int
    """Number of the sequence in the step."""
    start: int
    """First token of the step."""
    end: int
    """Token of the step after the last one."""
    position: int
    """Position of the first one."""


def long_queries(
    query_starts: Sequence[int], lengths: Sequence[int], top_k: int
) -> list[LongQueries]:
    """Return the long queries of a step, by sequence."""
    found = []
    for sequence, length in enumerate(lengths):
        end = query_starts[sequence + 1]
        position = max(top_k, length - (end - query_starts[sequence]))
        if position < length:
            found.append(LongQueries(sequence, end - (length - position), end, position))
    return found


class IndexPlan:
    """The group of index keys in one step, for all its layers."""

    def __init__(self, inputs: AttentionInputs, top_k: int) -> None:
        self._inputs = inputs
        self._top_k = top_k
        self._long = long_queries(inputs.query_starts, exact_lengths(inputs), top_k)

    def select(
        self, query: torch.Tensor, weights: torch.Tensor, key: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor | None:
        """Write the keys [num_tokens, size] to the cache; return the positions [n, top_k] that the
        long queries of the step attend to, ascending. None: there are none.

        query is [num_tokens, heads, size], weights [num_tokens, heads] float32.
        """
        inputs = self._inputs
        flat = cache.flatten(0, 1)
        flat[inputs.slots] = key if inputs.slot_tokens is None else key[inputs.slot_tokens]
        found = [self._select_of(each, query, weights, cache) for each in self._long]
        return torch.cat(found) if found else None

    def _select_of(
        self, long: LongQueries, query: torch.Tensor, weights: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor:
        """Return the positions of one sequence's long queries."""
        heads = query.shape[1]
        piece = max(1, MAX_PRODUCTS // (heads * KEYS_PER_PIECE))
        found = []
        for start in range(long.start, long.end, piece):
            end = min(long.end, start + piece)
            first = long.position + start - long.start
            scores = self._scores(
                long.sequence, first + end - start, query[start:end], weights[start:end], cache
            )
            positions = torch.arange(first, first + end - start, device=scores.device)
            later = torch.arange(scores.shape[1], device=scores.device) > positions[:, None]
            found.append(top_positions(scores.masked_fill_(later, float("-inf")), self._top_k))
        return torch.cat(found)

    def _scores(
        self,
        sequence: int,
        length: int,
        query: torch.Tensor,
        weights: torch.Tensor,
        cache: torch.Tensor,
    ) -> torch.Tensor:
        """Return the float32 scores [n, length] of a sequence's first tokens for some queries."""
        size = cache.shape[1]
        blocks = -(-length // size)
        table = self._inputs.block_table[sequence, :blocks]
        rows = query.float().flatten(0, 1)
        scores = rows.new_empty(len(query), blocks * size)
        step = max(1, KEYS_PER_PIECE // size)
        for at in range(0, blocks, step):
            keys = cache.index_select(0, table[at : at + step]).flatten(0, 1).float()
            products = (rows @ keys.T).relu_().view(*query.shape[:2], len(keys))
            scores[:, at * size : at * size + len(keys)] = torch.bmm(
                weights[:, None], products
            ).squeeze(1)
        return scores[:, :length]


class SparsePlan:
    """The group of latents in one step, for all its layers with an indexer."""

    def __init__(self, backend: AttentionBackend, inputs: AttentionInputs, top_k: int) -> None:
        self._backend: Any = backend
        lengths = exact_lengths(inputs)
        self._inputs = replace(
            inputs, kv_lens=lengths, slack=None, starts=None, counts=None, lengths=None
        )
        self._top_k = top_k
        self._long = long_queries(inputs.query_starts, lengths, top_k)
        self._gathered: tuple[Any, torch.Tensor] | None = None
        if not self._long:
            self._whole = backend.prepare(inputs)
            return
        empty = inputs.block_table[:0]
        self._writes = backend.prepare(
            replace(self._inputs, query_starts=[0], kv_lens=[], block_table=empty)
        )
        self._short = self._prepare_short()

    def _prepare_short(self) -> tuple[torch.Tensor, Any] | None:
        """Return the tokens that see up to `top_k` tokens, and their backend's plan; None: there
        are none.
        """
        inputs = self._inputs
        starts = [0]
        kv_lens = []
        sequences: list[int] = []
        tokens: list[int] = []
        positions: list[int] = []
        for sequence, length in enumerate(inputs.kv_lens):
            begin, end = inputs.query_starts[sequence : sequence + 2]
            first = length - (end - begin)
            last = min(length, self._top_k)
            if first < last:
                tokens += range(begin, begin + last - first)
                positions += range(first, last)
                sequences += [sequence] * (last - first)
                kv_lens.append(last)
                starts.append(len(tokens))
        if not tokens:
            return None
        device = inputs.block_table.device
        owners = torch.tensor(sequences, device=device)
        at = torch.tensor(positions, device=device)
        plan = self._backend.prepare(
            replace(
                inputs,
                query_starts=starts,
                kv_lens=kv_lens,
                block_table=inputs.block_table[owners[starts[:-1]]],
                slots=_slots(inputs.block_table[owners], at[:, None], inputs.block_size)[:, 0],
                slot_tokens=None,
            )
        )
        return torch.tensor(tokens, device=device), plan

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        cache: torch.Tensor,
        selected: torch.Tensor | None,
    ) -> torch.Tensor:
        """Write latents to the cache; return attention [num_tokens, heads, rank].

        Arguments as those of `AttentionBackend.attend`; `selected`: the positions of the long
        queries (`IndexPlan.select`).
        """
        rank = params.value_size
        assert rank is not None, "only latents are selected"
        attend = self._backend.attend
        value = key[..., :rank]
        out: torch.Tensor
        if selected is None:
            out = attend(params, query, key, value, cache, self._whole)
            return out
        attend(params, query[:0], key, value, cache, self._writes)
        out = query.new_empty(*query.shape[:2], rank)
        if self._short is not None:
            tokens, plan = self._short
            out[tokens] = attend(params, query[tokens], key[tokens], value[tokens], cache, plan)
        own = replace(params, causal=False, kv_dtype=None, key_scale=None)
        rows = iter(selected)
        for sequence, start, end, _ in self._long:
            table = self._inputs.block_table[sequence : sequence + 1]
            for token in range(start, end):
                slots = _slots(table, next(rows)[None].long(), self._inputs.block_size)[0]
                latents = self._backend.read_kv(params, cache, slots, query.dtype)[:, 0]
                plan, gathered = self._gathered or self._prepare_gathered(query)
                some = slice(token, token + 1)
                out[some] = attend(own, query[some], latents, latents[..., :rank], gathered, plan)
        return out

    def _prepare_gathered(self, query: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Return the plan and the cache of one query's gathered latents, for all layers.

        They are attended to like the positions of an encoder: by the backend's kernels, in one
        block, without a mask.
        """
        device = query.device
        size = -(-self._top_k // BLOCK_MULTIPLE) * BLOCK_MULTIPLE
        dtype = str(query.dtype).removeprefix("torch.")
        spec = LatentKeys(1, query.shape[2], dtype)
        inputs = AttentionInputs(
            query_starts=[0, 1],
            kv_lens=[self._top_k],
            block_table=torch.zeros(1, 1, dtype=torch.int32, device=device),
            slots=torch.arange(self._top_k, device=device),
            block_size=size,
            spec=spec,
        )
        cache = query.new_empty(self._backend.cache_shape(spec, 1, size))
        self._gathered = self._backend.prepare(inputs), cache
        return self._gathered


def top_positions(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return the positions [n, count] of the highest scores [n, length], ascending; int32.

    Of equal scores the first ones are selected. Reads nothing back from the device.
    """
    least = scores.topk(count, sorted=False).values.amin(1, keepdim=True)
    above = scores > least
    equal = scores == least
    num_equal = count - above.sum(1, keepdim=True)
    selected = above | (equal & (equal.cumsum(1) <= num_equal))
    # Positions that are not selected go to an additional column. Scores that are no numbers select
    # too few; the zeros keep positions valid.
    columns = torch.where(selected, selected.cumsum(1) - 1, count)
    positions = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)
    positions = positions.expand_as(columns)
    found = positions.new_zeros(len(scores), count + 1)
    return found.scatter_(1, columns, positions)[:, :count]


def exact_lengths(inputs: AttentionInputs) -> list[int]:
    """Return the exact lengths of the sequences; waits for unverified draft tokens."""
    if inputs.slack is None or inputs.lengths is None:
        return inputs.kv_lens
    lengths: list[int] = inputs.lengths.tolist()
    return lengths


def _slots(tables: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return the slots of positions [n, m] in block tables [n, blocks]."""
    blocks = tables.gather(1, positions // block_size).long()
    return blocks * block_size + positions % block_size
