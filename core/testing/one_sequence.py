"""Runs a model step by step without an engine: one sequence, its keys and values in one plain
cache.

For parity tests of architectures: what a `Session` computes in one step, in chunks or token by
token must be equal, and equal to the truth.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from core.contracts.attention import AttentionInputs, ForwardBatch
from core.contracts.models import BuildContext
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import CacheSpec, IndexKeys, RecurrentState, SlidingRows
from core.model_spec.parallel import ParallelGroup, Pipeline
from core.models.layers.linear import PlainWeights
from core.models.layers.state import LayerCache, plan_states, prepare
from core.models.ops.table import reference_ops


class OneSequenceAttention:
    """Attention over one sequence; the cache is [vectors, length, kv_heads, head_size], the plan
    its first position.
    """

    graph_support = "none"

    def cache_shape(self, spec: Any, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the shape of one layer's cache."""
        return (spec.vectors, num_blocks * block_size, spec.kv_heads, spec.head_size)

    def prepare(self, inputs: Any) -> Any:
        """Return the first position of the step; a position is its own slot."""
        return int(inputs.slots[0])

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: int,
    ) -> torch.Tensor:
        """Write key and value, return attention; every score is computed."""
        end = plan + key.shape[0]
        cache[0, plan:end] = key
        if params.value_size is None:
            cache[1, plan:end] = value
        group = params.heads // params.kv_heads
        keys = cache[0, :end].repeat_interleave(group, 1)
        values = cache[-1, :end, :, : params.value_size].repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * params.scale
        if params.softcap is not None:
            scores = torch.tanh(scores / params.softcap) * params.softcap
        at = torch.arange(plan, plan + query.shape[0])[:, None]
        seen = torch.arange(end)[None]
        hidden = (seen > at) & params.causal
        if params.window is not None:
            hidden |= at - seen >= params.window
        if params.chunk is not None:
            hidden |= at // params.chunk != seen // params.chunk
        if params.alibi is not None:
            scores = scores + params.alibi[:, None, None] * (seen - at)
        if params.distance_bias is not None:
            reach = params.distance_bias.shape[1] // 2
            scores = scores + params.distance_bias[:, (seen - at).clamp(-reach, reach) + reach]
        scores = scores.masked_fill(hidden, float("-inf"))
        if params.sinks is not None:  # one more column; its weight is dropped
            sinks = params.sinks[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
        weights = scores.softmax(-1)[..., :end].to(values.dtype)
        return torch.einsum("hqk,khd->qhd", weights, values)

    def read_kv(
        self, params: AttentionParams, cache: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return keys and values [n, vectors, kv_heads, head_size] of slots, in `dtype`."""
        del params
        return cache[:, slots].transpose(0, 1).to(dtype)


def plain_context(
    group: ParallelGroup | None = None,
    dtype: torch.dtype = torch.float32,
    pipeline: Pipeline | None = None,
) -> BuildContext:
    """Return a context of plain weights, reference ops and `OneSequenceAttention`."""
    group = group or ParallelGroup()
    pipeline = pipeline or Pipeline()
    return BuildContext(
        dtype, "cpu", OneSequenceAttention(), PlainWeights(), reference_ops(), group, pipeline
    )


def read_config(folder: str | Path) -> SimpleNamespace:
    """Return a checkpoint's config.json as an object with attributes."""
    return SimpleNamespace(**json.loads((Path(folder) / "config.json").read_text()))


class Session:
    """One sequence of a loaded model. A model has one session at a time."""

    def __init__(self, model: Any, length: int = 256) -> None:
        self._model = model
        self.position = 0
        self._specs = [layer.spec for layer in model.kv_layers]
        model.bind_kv([_empty_cache(spec, length) for spec in self._specs])

    @torch.inference_mode()
    def step(self, ids: Sequence[int]) -> torch.Tensor:
        """Compute the next tokens and return the log-probabilities after each, [len(ids),
        vocab].
        """
        start = self.position
        tokens = torch.tensor(list(ids))
        batch = ForwardBatch(
            input_ids=tokens,
            positions=torch.arange(start, start + len(ids)),
            attention=[_plan(spec, start, len(ids)) for spec in self._specs],
            rows=[0],
            starts=[start],
            counts=[len(ids)],
            prompt_lens=[len(ids)],
            token_ids=tokens[None],
        )
        self.position += len(ids)
        logits: torch.Tensor = self._model.logits(self._model(batch))
        return logits.log_softmax(-1)

    def generate(
        self, ids: Sequence[int], num_tokens: int, chunk: int | None = None
    ) -> tuple[list[int], torch.Tensor]:
        """Return greedy tokens after a prompt, computed `chunk` tokens a step, and all
        log-probabilities.
        """
        chunk = chunk or len(ids)
        pieces = [self.step(ids[i : i + chunk]) for i in range(0, len(ids), chunk)]
        tokens: list[int] = []
        for _ in range(num_tokens):
            tokens.append(int(pieces[-1][-1].argmax()))
            pieces.append(self.step(tokens[-1:]))
        return tokens, torch.cat(pieces)


def _empty_cache(spec: CacheSpec, length: int) -> LayerCache:
    if isinstance(spec, RecurrentState):
        return tuple(
            torch.zeros(2, *shape, dtype=getattr(torch, dtype)) for shape, dtype in spec.parts
        )
    if isinstance(spec, (IndexKeys, SlidingRows)):
        rows = length // getattr(spec, "rate", 1)
        return torch.zeros(1, rows, spec.head_size, dtype=getattr(torch, spec.dtype))
    return torch.zeros(
        spec.vectors, length, spec.kv_heads, spec.head_size, dtype=getattr(torch, spec.dtype)
    )


def _plan(spec: CacheSpec, start: int, count: int) -> Any:
    if isinstance(spec, RecurrentState):  # its state is always in block 1
        return plan_states(
            np.array([start]), np.array([count]), np.array([[1]], dtype=np.int32), start + count
        )
    if not (spec.top_k or isinstance(spec, (IndexKeys, SlidingRows))):
        return start
    end = start + count
    block = torch.zeros(1, 1, dtype=torch.int32)  # one block holds the sequence
    slots = torch.arange(start, end)
    inputs = AttentionInputs([0, count], [end], block, slots, 1 << 30, spec)
    return prepare(OneSequenceAttention(), reference_ops(), inputs)
