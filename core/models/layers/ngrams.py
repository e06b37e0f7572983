"""Embeddings of n-grams, gated by each residual stream and followed by a dilated convolution."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from core.model_spec.kv import RecurrentState
from core.models.layers.hyper_connections import StreamNorm
from core.models.layers.linear import Linear, Slice
from core.models.layers.short_conv import ShortConv
from core.models.layers.weights import WeightMap, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.ngrams import NgramSpec
    from core.models.layers.state import SegmentGroup, StatePlan, States

MIN_GATE = 1e-6


class Ngrams(nn.Module):
    """Every rank computes all streams.

    State: the last tokens, each plus 1 (0: before the first one), and the convolution's inputs.
    """

    def __init__(
        self,
        spec: NgramSpec,
        streams: int,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.spec = spec
        self._streams = streams
        self._sigmoid = context.ops.sigmoid
        width = streams * hidden
        self._expect_tables(f"{prefix}.ple_embedding.ngram_embedding", context, weights)
        key = [Slice("key", width)]
        value = [Slice("value", hidden)]
        self.key = Linear(context, weights, f"{prefix}.key_proj", spec.width, key)
        self.value = Linear(context, weights, f"{prefix}.value_proj", spec.width, value)
        self.key_norm, self.stream_norm, self.conv_norm = (
            StreamNorm(streams, hidden, spec.eps, f"{prefix}.norm_{name}", context, weights)
            for name in ("key", "query", "conv")
        )
        channels = [Slice("x", width, parts=1)]
        name = f"{prefix}.conv1d"
        self.conv = ShortConv(
            channels, spec.kernel, context, weights, name, bias=False, dilation=spec.size
        )
        self.kv_spec = RecurrentState((((spec.size - 1,), "float32"), self.conv.state_part))
        self.cache: States | None = None

    def _expect_tables(self, name: str, context: BuildContext, weights: WeightMap) -> None:
        """Expect the tables of all heads, in shards."""
        spec = self.spec
        rows = spec.rows
        total = -(-sum(rows) // spec.multiple) * spec.multiple
        width = spec.width // len(rows)
        self.table = empty_parameter(total, width, dtype=context.dtype)
        each = -(-total // spec.shards)
        for index, part in enumerate(torch.split(self.table.data, each)):
            load = partial(copy_weight, part)
            weights.add(f"{name}.shard_{index}.weight", tuple(part.shape), load)
        starts = torch.tensor([0, *rows[:-1]]).cumsum(0)
        self.rows: torch.Tensor
        self.starts: torch.Tensor
        self.factors: torch.Tensor
        self.register_buffer("rows", torch.tensor(rows), persistent=False)
        self.register_buffer("starts", starts, persistent=False)
        self.register_buffer("factors", torch.tensor(spec.multipliers), persistent=False)

    def forward(self, x: torch.Tensor, token_ids: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return what is added to the streams [n, streams * hidden]; states go to the cache."""
        found = F.embedding(plan.compute(self._rows_of, token_ids), self.table).flatten(1)
        shape = (len(x), self._streams, -1)
        products = self.key_norm(self.key(found)) * self.stream_norm(x)
        gate = products.view(shape).sum(-1, keepdim=True) / math.sqrt(x.shape[1] // self._streams)
        gate = gate.abs().clamp_min(MIN_GATE).sqrt() * gate.sign()
        value: torch.Tensor = (self._sigmoid(gate) * self.value(found)[:, None]).flatten(1)
        return value + plan.compute(self._convolve, self.conv_norm(value))

    def _rows_of(self, run: SegmentGroup, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the table row of each head's n-gram [n, length, heads]."""
        spec = self.spec
        assert self.cache is not None, "bind_kv was not called"
        before = run.load(self.cache[0]).long() - 1
        before = torch.where(before < 0, spec.separator, before)
        tokens = torch.cat([before, token_ids.long()], dim=1)
        run.store(self.cache[0], tokens[:, token_ids.shape[1] :] + 1)
        mixed = token_ids.long() * self.factors[0]
        previous: torch.Tensor | None = None
        found = []
        for back in range(1, spec.size):
            shifted = tokens[:, spec.size - 1 - back : tokens.shape[1] - back]
            if previous is not None:
                shifted = torch.where(previous == spec.separator, spec.separator, shifted)
            previous = shifted
            mixed = mixed ^ (shifted * self.factors[back])
            own = slice((back - 1) * spec.heads, back * spec.heads)
            found.append(mixed[..., None] % self.rows[own] + self.starts[own])
        return torch.cat(found, dim=-1)

    def _convolve(self, run: SegmentGroup, x: torch.Tensor) -> torch.Tensor:
        assert self.cache is not None, "bind_kv was not called"
        return self.conv(x, run, self.cache[1])  # type: ignore[no-any-return]
