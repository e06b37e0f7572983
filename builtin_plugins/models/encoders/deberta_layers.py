"""The layers of DeBERTa 2 and 3: whole prompts one by one, no cache, no tensor parallelism."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from builtin_plugins.models.encoders.deberta_facts import NAMES, DebertaFacts
from core.api.models import BuildContext, ForwardBatch
from core.model_spec.kv import LayerKV
from core.models.layers.embedding import Embedding
from core.models.layers.linear import Linear, Slice
from core.models.layers.mlp import Mlp
from core.models.layers.norm import make_norm
from core.models.layers.pooling import ACTIVATIONS, PoolingHead
from core.models.layers.weights import WeightMap, assign_weight, empty_parameter

BASE = "deberta.embeddings"


class Deberta(nn.Module):
    """A DeBERTa model; satisfies `core.api.PoolingModel`."""

    takes_adapters = False
    """Its layers multiply tables of distances too, which are no request's."""

    def __init__(self, spec: DebertaFacts, context: BuildContext) -> None:
        super().__init__()
        self.vocab_size = spec.vocab_size
        self.kv_layers: Sequence[LayerKV] = ()
        self.spec = spec
        self._dtype = context.dtype
        self._weights = weights = WeightMap(rename=NAMES.rename, ignored=NAMES.ignored)
        with torch.device(context.device):
            self.embed = Embedding(
                spec.vocab_size, spec.embed_size, context, weights, f"{BASE}.word_embeddings"
            )
            self.positions = self._table(
                "positions", spec.learned_positions, f"{BASE}.position_embeddings"
            )
            self.types = self._table("types", spec.token_types, f"{BASE}.token_type_embeddings")
            self.embed_in: Linear | None = None
            if spec.embed_size != spec.hidden_size:
                out = [Slice("out", spec.hidden_size)]
                self.embed_in = Linear(context, weights, f"{BASE}.embed_proj", spec.embed_size, out)
            self.embed_norm = make_norm(
                spec.norm, spec.hidden_size, context, weights, f"{BASE}.LayerNorm"
            )
            self.distances = Distances(spec, context, weights)
            self.layers = nn.ModuleList(
                Layer(spec, index, context, weights) for index in range(spec.num_layers)
            )
            self.conv = Convolution(spec, context, weights) if spec.conv_size else None
            assert spec.pooling is not None, "an encoder is pooled"
            self.head = PoolingHead(spec.pooling, spec.hidden_size, weights)

    def _table(self, name: str, rows: int, prefix: str) -> nn.Parameter | None:
        table = empty_parameter(rows, self.spec.embed_size, dtype=self._dtype) if rows else None
        self.register_parameter(name, table)
        if table is not None:
            self._weights.add(
                f"{prefix}.weight", table.shape, lambda tensor: assign_weight(table, tensor)
            )
        return table

    def bind_kv(self, caches: Sequence[object]) -> None:
        """Nothing is cached."""

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name and shape of every checkpoint tensor the model expects."""
        return self._weights.shapes()

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill every parameter.

        Raises `ModelError` naming missing, unexpected and misshapen tensors.
        """
        self._weights.load(tensors)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden]."""
        x: torch.Tensor = self.embed(batch.input_ids)
        if self.positions is not None:
            x = x + self.positions[batch.positions]
        if self.types is not None:
            types = batch.token_types
            x = x + (self.types[0] if types is None else self.types[types])
        first = x = self.embed_norm(x if self.embed_in is None else self.embed_in(x))
        table = self.distances()
        rows = [self.distances.rows_of(count) for count in batch.counts]
        for layer in self.layers:
            x = layer(x, batch.counts, table, rows)
            if self.conv is not None and layer is self.layers[0]:
                x = self.conv(first, x, batch.counts)
        return x

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, numbers]: the pooling head's output for pooled hidden states."""
        return self.head(hidden)  # type: ignore[no-any-return]


class Distances(nn.Module):
    """A vector for each distance, and which of them each pair of tokens has."""

    def __init__(self, spec: DebertaFacts, context: BuildContext, weights: WeightMap) -> None:
        super().__init__()
        self._span = spec.span
        self._max_distance = spec.max_distance
        self.table = empty_parameter(2 * spec.span, spec.hidden_size, dtype=context.dtype)
        weights.add(
            "deberta.encoder.rel_embeddings.weight",
            self.table.shape,
            lambda t: assign_weight(self.table, t),
        )
        self.norm: nn.Module | None = None
        if spec.norm_distances:
            self.norm = make_norm(
                spec.norm, spec.hidden_size, context, weights, "deberta.encoder.LayerNorm"
            )

    def forward(self) -> torch.Tensor:
        """Return [2 * span, hidden]."""
        return self.table if self.norm is None else self.norm(self.table)

    def rows_of(self, count: int) -> torch.Tensor:
        """Return the row [count, count] of that table for each query and key: exact when near, then
        by logarithm.
        """
        at = torch.arange(count, device=self.table.device)
        distance = at[:, None] - at[None]
        if self._max_distance:
            middle = self._span // 2
            away = distance.abs().clamp(min=middle)  # those nearer stay as they are
            far = (
                torch.log(away / middle)
                / math.log((self._max_distance - 1) / middle)
                * (middle - 1)
            )
            distance = torch.where(
                distance.abs() <= middle, distance, distance.sign() * (far.ceil().long() + middle)
            )
        return (distance + self._span).clamp(0, 2 * self._span - 1)


class Layer(nn.Module):
    """Post-norm layer of attention and MLP."""

    def __init__(
        self, spec: DebertaFacts, index: int, context: BuildContext, weights: WeightMap
    ) -> None:
        super().__init__()
        prefix = NAMES.layer.format(index)
        hidden = spec.hidden_size
        self._heads = spec.heads
        self._spec = spec

        def product(name: str) -> Linear:
            return Linear(
                context, weights, f"{prefix}.{name}", hidden, [Slice("out", hidden)], bias=True
            )

        self.query = product(NAMES.q)
        self.key = product(NAMES.k)
        self.value = product(NAMES.v)
        self.position_key = self.key
        self.position_query = self.query
        if not spec.share_keys:
            if spec.content_to_position:
                self.position_key = product("attention.self.pos_key_proj")
            if spec.position_to_content:
                self.position_query = product("attention.self.pos_query_proj")
        self.out = product(NAMES.o)
        self.attention_out = make_norm(
            spec.norm, hidden, context, weights, f"{prefix}.{NAMES.attention_out}"
        )
        self.mlp = Mlp(spec.mlp, hidden, NAMES, prefix, context, weights)
        self.mlp_out = make_norm(spec.norm, hidden, context, weights, f"{prefix}.{NAMES.mlp_out}")

    def forward(
        self,
        x: torch.Tensor,
        counts: Sequence[int],
        table: torch.Tensor,
        rows: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Return the hidden states; `rows` holds each pair's row of `table`, per sequence."""
        query, key, value = (self._by_head(part(x)) for part in (self.query, self.key, self.value))
        far_key = (
            self._by_head(self.position_key(table)) if self._spec.content_to_position else None
        )
        far_query = (
            self._by_head(self.position_query(table)) if self._spec.position_to_content else None
        )
        scale = (
            query.shape[-1] * (1 + self._spec.content_to_position + self._spec.position_to_content)
        ) ** -0.5
        parts = []
        start = 0
        for count, pair_rows in zip(counts, rows, strict=True):
            q, k, v = (
                part[:, start : start + count] for part in (query, key, value)
            )  # [heads, count, size]
            scores = q @ k.transpose(1, 2)
            if far_key is not None:
                scores = scores + _pick(q @ far_key.transpose(1, 2), pair_rows)
            if far_query is not None:
                scores = scores + _pick(k @ far_query.transpose(1, 2), pair_rows.T).transpose(1, 2)
            parts.append((scores.float() * scale).softmax(-1).to(v.dtype) @ v)
            start += count
        attended = torch.cat(parts, 1).transpose(0, 1).flatten(1)
        x = self.attention_out(self.out(attended) + x)
        return self.mlp_out(self.mlp(x) + x)  # type: ignore[no-any-return]

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), self._heads, -1).transpose(0, 1)


def _pick(scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return scores [heads, n, m] at `rows` [n, m] of the last axis."""
    return scores.gather(2, rows.expand(len(scores), -1, -1))


class Convolution(nn.Module):
    """Convolution over adjacent embeddings, parallel to the first layer."""

    def __init__(self, spec: DebertaFacts, context: BuildContext, weights: WeightMap) -> None:
        super().__init__()
        prefix = "deberta.encoder.conv"
        hidden = spec.hidden_size
        self._groups = spec.conv_groups
        self._activate = ACTIVATIONS[spec.conv_activation]
        self.weight = empty_parameter(
            hidden, hidden // spec.conv_groups, spec.conv_size, dtype=context.dtype
        )
        self.bias = empty_parameter(hidden, dtype=context.dtype)
        weights.add(
            f"{prefix}.conv.weight", self.weight.shape, lambda t: assign_weight(self.weight, t)
        )
        weights.add(f"{prefix}.conv.bias", self.bias.shape, lambda t: assign_weight(self.bias, t))
        self.norm = make_norm(spec.norm, hidden, context, weights, f"{prefix}.LayerNorm")

    def forward(self, first: torch.Tensor, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Return the hidden states after the first layer; `first` is that layer's input."""
        pad = (self.weight.shape[2] - 1) // 2
        seen = [
            nn.functional.conv1d(
                part.T[None], self.weight, self.bias, padding=pad, groups=self._groups
            )[0].T
            for part in first.split(list(counts))  # type: ignore[no-untyped-call]
        ]
        return self.norm(x + self._activate(torch.cat(seen)))  # type: ignore[no-any-return]
