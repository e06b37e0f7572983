"""Sparse attention over latents: an indexer's keys select the tokens that a query attends to.

Index keys and latents are two KV groups with block tables of their own. Queries that see at most
`top_k` tokens attend to all of them, by the attention backend. The others ("long" queries) attend
to `top_k` selected positions. Their latents are gathered from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from core.contracts.attention import AttentionInputs
from core.model_spec.kv import LatentKeys
from core.models.dtypes import dtype_name
from core.models.layers.query_batches import Queries

if TYPE_CHECKING:
    from core.contracts.attention import AttentionBackend
    from core.model_spec.attention_params import AttentionParams

BLOCK_MULTIPLE: Final = 16
"""Divisor of the block size of gathered latents, for the kernels' tiles."""


def long_queries(query_starts: Sequence[int], lengths: Sequence[int], top_k: int) -> list[Queries]:
    """Return the queries of a step that see more than `top_k` tokens, by sequence."""
    found = []
    for sequence, length in enumerate(lengths):
        end = query_starts[sequence + 1]
        position = max(top_k, length - (end - query_starts[sequence]))
        if position < length:
            found.append(Queries(sequence, end - (length - position), end, position))
    return found


class LongQueriesPlan:
    """The group of index keys in one step, for all its layers."""

    def __init__(self, inputs: AttentionInputs, top_k: int) -> None:
        self._inputs = inputs
        self._top_k = top_k
        self._long = long_queries(inputs.query_starts, exact_lengths(inputs), top_k)

    def _write(self, key: torch.Tensor, cache: torch.Tensor) -> None:
        """Write the keys [num_tokens, size] to the cache."""
        inputs = self._inputs
        flat = cache.flatten(0, 1)
        flat[inputs.slots] = key if inputs.slot_tokens is None else key[inputs.slot_tokens]


class IndexPlan(LongQueriesPlan):
    """The group of index keys in one step; an op selects tokens."""

    def __init__(
        self, select_tokens: Callable[..., torch.Tensor], inputs: AttentionInputs, top_k: int
    ) -> None:
        super().__init__(inputs, top_k)
        self._select_tokens = select_tokens
        device = inputs.block_table.device
        self._seen = [
            torch.arange(long.end - long.start, device=device) + (long.position + 1)
            for long in self._long
        ]

    def select(
        self, query: torch.Tensor, weights: torch.Tensor, key: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor | None:
        """Write the keys [num_tokens, size] to the cache; return the positions [n, top_k] that the
        long queries of the step attend to, ascending. None: there are none.

        Query is [num_tokens, heads, size], weights [num_tokens, heads] float32.
        """
        self._write(key, cache)
        inputs = self._inputs
        found = []
        for long, seen in zip(self._long, self._seen, strict=True):
            table = inputs.block_table[long.sequence, : -(-long.length // cache.shape[1])]
            some = slice(long.start, long.end)
            inputs_of_long = (query[some], weights[some], cache, table, seen)
            found.append(self._select_tokens(*inputs_of_long, self._top_k))
        return torch.cat(found) if found else None


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
        self._gathered: torch.Tensor | None = None
        self._gathered_plans: dict[int, Any] = {}
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
                slots=slots_of(inputs.block_table[owners], at[:, None], inputs.block_size)[:, 0],
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
        assert rank is not None, "these are latents"
        out = self._attend_short(params, query, key, key[..., :rank], cache)
        if selected is None:
            return out
        rows = iter(selected)
        for sequence, start, end, _ in self._long:
            table = self._inputs.block_table[sequence]
            for token in range(start, end):
                some = slice(token, token + 1)
                out[some] = self._attend_selected(params, query[some], cache, table, next(rows))
        return out

    def _attend_short(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
    ) -> torch.Tensor:
        """Write to the cache; return attention, without values for the long queries."""
        attend = self._backend.attend
        out: torch.Tensor
        if not self._long:
            out = attend(params, query, key, value, cache, self._whole)
            return out
        attend(params, query[:0], key, value, cache, self._writes)
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        if self._short is not None:
            tokens, plan = self._short
            out[tokens] = attend(params, query[tokens], key[tokens], value[tokens], cache, plan)
        return out

    def _attend_selected(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        cache: torch.Tensor,
        table: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Return attention [1, heads, rank] of one query to the latents at `positions`.

        The latents go to one block, which the backend's kernels attend to without a mask, like the
        positions of an encoder.
        """
        backend = self._backend
        spec = LatentKeys(1, query.shape[2], dtype_name(query.dtype))
        size = -(-self._top_k // BLOCK_MULTIPLE) * BLOCK_MULTIPLE
        if self._gathered is None:
            self._gathered = query.new_empty(backend.cache_shape(spec, 1, size))
        gathered = self._gathered
        latents = query.new_empty(0, 1, query.shape[2])
        copies = hasattr(backend, "copy_latents")
        if not copies or not backend.copy_latents(cache, table, positions, gathered):
            slots = slots_of(table[None], positions[None].long(), self._inputs.block_size)[0]
            latents = backend.read_kv(params, cache, slots, query.dtype)[:, 0]
        plan = self._gathered_plans.get(len(latents))
        if plan is None:
            plan = backend.prepare(_one_block(spec, size, self._top_k, len(latents), query.device))
            self._gathered_plans[len(latents)] = plan
        own = replace(params, causal=False, kv_dtype=None, key_scale=None)
        value = latents[..., : params.value_size]
        out: torch.Tensor = backend.attend(own, query, latents, value, gathered, plan)
        return out


def _one_block(
    spec: LatentKeys, size: int, count: int, num_written: int, device: torch.device
) -> AttentionInputs:
    """Return the inputs of one query and `count` latents in one block, some of them written."""
    return AttentionInputs(
        query_starts=[0, 1],
        kv_lens=[count],
        block_table=torch.zeros(1, 1, dtype=torch.int32, device=device),
        slots=torch.arange(num_written, device=device),
        block_size=size,
        spec=spec,
    )


def exact_lengths(inputs: AttentionInputs) -> list[int]:
    """Return the exact lengths of the sequences; waits for unverified draft tokens."""
    if inputs.slack is None or inputs.lengths is None:
        return inputs.kv_lens
    lengths: list[int] = inputs.lengths.tolist()
    return lengths


def slots_of(tables: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return the slots of positions [n, m] in block tables [n, blocks]."""
    blocks = tables.gather(1, positions // block_size).long()
    return blocks * block_size + positions % block_size
