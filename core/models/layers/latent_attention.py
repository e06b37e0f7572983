"""Multi-head latent attention (MLA) with absorbed projections: the cache holds latents only.

A head's key is W_k @ latent, so its score is query @ W_k @ latent. The query is multiplied by W_k
once, and all heads attend to the latents as to one shared key. The weighted sum of latents is
multiplied by W_v.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from core.errors import ModelError
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import LatentKeys, SlidingLatents
from core.models.layers.attention import temperature_scale
from core.models.layers.indexer import Indexer
from core.models.layers.kv_cache import KVCacheDtype
from core.models.layers.linear import Linear, Slice, UnpackedWeight
from core.models.layers.log_scaling import LogScaling
from core.models.layers.norm import RmsNorm, make_norm, optional_norm
from core.models.layers.per_head import PerHead
from core.models.layers.sinks import expect_sinks

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.attention import LatentAttentionSpec
    from core.model_spec.names import WeightNames
    from core.models.layers.positions import Rotary
    from core.models.layers.weights import WeightMap


class HeadsAdapter(Protocol):
    """Adapter (LoRA) of the absorbed key and value projections."""

    def __call__(
        self, layer: LatentAttention, side: str, x: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """Return the adapted product for this rank's heads; may modify `out` in place.

        `side` "key": x are queries [n, heads, key_size] and out latent queries [n, heads, rank].
        "value": x are sums of latents [n, heads, rank] and out values [n, heads, value_size].
        `layer.parts` holds the part of kv_b_proj: per head the key rows, then the value rows.
        """


class LatentAttention(nn.Module):
    """MLA with heads split over ranks; every rank caches the whole latents."""

    def __init__(
        self,
        spec: LatentAttentionSpec,
        hidden: int,
        names: WeightNames,
        layer: str,
        rotary: Rotary | None,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.adapter: HeadsAdapter | None = None
        self.spec = spec
        self.heads = context.group.share(spec.heads, "num_attention_heads")
        self._group = context.group
        self._rotary = rotary
        self._backend = context.attention
        self._sigmoid = context.ops.sigmoid
        self.source: LatentAttention | None = None
        """Layer that owns the latents; None: this layer."""
        self.is_source = False
        """Whether a later layer shares these latents."""
        self.last: torch.Tensor | None = None
        """Keys [n, 1, head_size] of the current step, for the layers that share them."""
        stored = {"k": f"{layer}.{names.latent}", "v": f"{layer}.{names.latent_up}"}
        cache_dtype = KVCacheDtype(None, stored, 1, context, weights)
        self.kv_spec = _kv_spec(spec, cache_dtype)
        sinks = expect_sinks(spec, f"{layer}.{names.sinks}", context, weights)
        self.register_parameter("sinks", sinks)
        self.params = AttentionParams(
            self.heads,
            1,
            spec.head_size,
            spec.scale,
            window=spec.window,
            sinks=None if sinks is None else sinks.data,
            value_size=spec.rank,
            kv_dtype=cache_dtype.other_dtype,
            key_scale=cache_dtype.scales.get("k"),
        )
        self.cache: torch.Tensor | None = None
        self._build_projections(hidden, names, layer, context, weights)
        is_plain = type(self.latent_norm) is RmsNorm and self.shared_norm is None
        is_plain &= rotary is not None and spec.latent_scale == 1.0
        self._latent_rows = context.ops.latent_rows if is_plain else None
        self.scaling: LogScaling | None = None
        if spec.log_scaling:
            name = f"{layer}.{names.log_scaling}"
            self.scaling = LogScaling(spec.heads, name, context.group, weights)
        self.indexer = _make_indexer(
            spec, hidden, f"{layer}.{names.indexer}", rotary, context, weights
        )
        self.indexer_source: Indexer | None = None
        """Indexer of an earlier layer, which selects for this one."""

    def _build_projections(
        self,
        hidden: int,
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """Build the projections to latents, queries and the output, with their norms."""
        spec = self.spec
        owns = spec.kv_source_layer is None
        parts = [Slice("latent", spec.head_size, f"{layer}.{names.latent}")] if owns else []
        self.query_norm: nn.Module | None = None
        if spec.query_rank is not None:
            parts.append(Slice("query", spec.query_rank, f"{layer}.{names.query_latent}"))
            norm = f"{layer}.{names.query_latent_norm}"
            self.query_norm = make_norm(spec.norm, spec.query_rank, context, weights, norm)
        self.down: Linear | None = None
        if parts:
            self.down = Linear(context, weights, parts[0].prefix, hidden, parts, bias=spec.bias)
        prefix = f"{layer}.{names.latent_norm}"
        norm_of_latents = spec.norm if owns else None
        self.latent_norm = optional_norm(norm_of_latents, spec.rank, context, weights, prefix)
        shared = spec.norm if spec.shared_norm and owns else None
        prefix = f"{layer}.{names.shared_key_norm}"
        self.shared_norm = optional_norm(shared, spec.shared_size, context, weights, prefix)
        size = spec.key_size + spec.shared_size + (spec.value_size if spec.query_gate else 0)
        self.query = Linear(
            context,
            weights,
            f"{layer}.{names.q if spec.query_rank is None else names.query_up}",
            (spec.query_rank or hidden) * (2 if spec.query_gate else 1),
            [Slice("q", spec.heads * size)],
            split="rows",
        )
        self.gate: Linear | None = None
        if spec.gate:
            prefix = f"{layer}.{names.attention_gate}"
            width = spec.heads * (spec.value_size if spec.gate_per_channel else 1)
            gate = [Slice("gate", width)]
            self.gate = Linear(context, weights, prefix, hidden, gate, split="rows")
        self._expect_up(context, weights, f"{layer}.{names.latent_up}")
        width = spec.heads * spec.value_size
        self.out = Linear(
            context,
            weights,
            f"{layer}.{names.o}",
            width,
            [Slice("o", hidden)],
            split="columns",
            bias=spec.bias,
        )

    def _expect_up(self, context: BuildContext, weights: WeightMap, prefix: str) -> None:
        """Expect kv_b_proj: per head the key rows, then the value rows."""
        spec = self.spec
        self.key_up = PerHead(self.heads, spec.rank, spec.key_size, prefix, context)
        self.value_up = PerHead(self.heads, spec.value_size, spec.rank, prefix, context)
        rows = spec.key_size + spec.value_size

        def take(own: torch.Tensor) -> None:
            own = own.view(-1, rows, spec.rank)
            self.key_up.load(own[:, : spec.key_size].transpose(1, 2))
            self.value_up.load(own[:, spec.key_size :])

        own = self._group.own(spec.heads * rows)
        self.parts = UnpackedWeight(
            context, weights, prefix, (spec.heads * rows, spec.rank), own, take
        ).parts
        self.prefixes = {name: part.target for name, part in self.parts.items()}

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, plan: Any, index_plan: Any = None
    ) -> torch.Tensor:
        """Return the attention output [n, hidden]; latents are written to the cache.

        `index_plan`: the plan of the indexer's keys, of a layer with an indexer of its own.
        """
        spec = self.spec
        parts: dict[str, torch.Tensor] = {}
        if self.down is not None:
            down = self.down(x)
            parts = {name: down[:, rows] for name, rows in self.down.slices.items()}
        read = x if self.query_norm is None else self.query_norm(parts["query"])
        if spec.query_scale != 1.0:
            read = read * spec.query_scale
        nope_query, rope_query, gate = self._queries(read, parts, positions)
        if self.source is None:
            query, key = self._query_and_key(parts["latent"], nope_query, rope_query, positions)
        else:
            query, key = self._query_with_shared_key(nope_query, rope_query, positions)
        assert self.cache is not None, "bind_kv was not called"
        if spec.indexer is None:
            sums = self._backend.attend(
                self.params, query, key, key[..., : spec.rank], self.cache, plan
            )
        else:
            selected = self._select(x, read, positions, index_plan)
            sums = plan.attend(self.params, query, key, self.cache, selected)
        values = self.value_up(sums)  # [n, heads, value_size]
        if self.adapter is not None:
            values = self.adapter(self, "value", sums, values)
        if spec.query_gate:
            values = (values * self._sigmoid(gate.float())).to(values.dtype)
        if self.gate is not None:
            gates = self._sigmoid(self.gate(x).float()).to(values.dtype)
            values = values * gates.view(len(x), self.heads, -1)
        return self.out(values.flatten(1))  # type: ignore[no-any-return]

    def _query_and_key(
        self,
        down: torch.Tensor,
        nope_query: torch.Tensor,
        rope_query: torch.Tensor,
        positions: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries [n, heads, head_size] and keys [n, 1, head_size] for the cache."""
        spec = self.spec
        assert self.latent_norm is not None, "the layer owns its latents"
        latent, shared = torch.split(down, [spec.rank, spec.shared_size], dim=-1)
        if self._latent_rows is not None and self.adapter is None:
            assert self._rotary is not None, "keys are rotated"
            query = latent.new_empty(len(latent), self.heads, spec.head_size)
            key, _ = self._latent_rows(
                query, latent, shared, rope_query, self.latent_norm.weight, spec.norm.eps,
                spec.norm.offset, *self._rotary.table(positions), self._rotary.interleaved,
            )  # fmt: skip
            self.key_up(nope_query, query[..., : spec.rank])
            if self.is_source:
                self.last = key
            return query, key
        latent = self.latent_norm(latent)
        if spec.latent_scale != 1.0:
            latent = latent * spec.latent_scale
        if self.shared_norm is not None:
            shared = self.shared_norm(shared)
        shared = shared[:, None]
        if self._rotary is not None:
            rope_query, shared = self._rotary(rope_query, shared, positions)
        key = torch.cat([latent[:, None], shared], dim=-1)
        if self.is_source:
            self.last = key
        return self._query_of_latents(nope_query, rope_query), key

    def _query_with_shared_key(
        self, nope_query: torch.Tensor, rope_query: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries of this layer, and the keys of the source layer."""
        assert self.source is not None
        assert self.source.last is not None
        if self._rotary is not None:  # takes a query and a key; there is no key here
            rope_query, _ = self._rotary(rope_query, rope_query[:, :0], positions)
        return self._query_of_latents(nope_query, rope_query), self.source.last

    def _query_of_latents(self, nope_query: torch.Tensor, rope_query: torch.Tensor) -> torch.Tensor:
        """Return queries [n, heads, head_size] of latents, after RoPE."""
        latent_query = self.key_up(nope_query)  # [n, heads, rank]
        if self.adapter is not None:
            latent_query = self.adapter(self, "key", nope_query, latent_query)
        return torch.cat([latent_query, rope_query], dim=-1)

    def _queries(
        self, read: torch.Tensor, parts: Mapping[str, torch.Tensor], positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return both parts of the queries, and the gate [n, heads, value_size] after them.

        Without `query_gate` the gate is empty.
        """
        spec = self.spec
        if spec.query_gate:
            read = torch.cat([read, parts["query"]], dim=-1)
        sizes = [spec.key_size, spec.shared_size, spec.value_size if spec.query_gate else 0]
        query = self.query(read).view(-1, self.heads, sum(sizes))
        if spec.temperature is not None:
            query = query * temperature_scale(spec.temperature, positions)[:, None, None].to(
                query.dtype
            )
        if self.scaling is not None:
            query = self.scaling(query, positions)
        nope_query, rope_query, gate = query.split(sizes, dim=-1)
        return nope_query, rope_query, gate

    def _select(
        self, x: torch.Tensor, query_latent: torch.Tensor, positions: torch.Tensor, plan: Any
    ) -> torch.Tensor | None:
        """Return the positions to attend to, by this layer's indexer or an earlier one."""
        if self.indexer is not None:
            read = x if self.indexer.reads_input else query_latent
            return self.indexer(x, read, positions, plan)  # type: ignore[no-any-return]
        assert self.indexer_source is not None, "the layer has no indexer"
        return self.indexer_source.selected


def _kv_spec(spec: LatentAttentionSpec, cached: KVCacheDtype) -> LatentKeys | SlidingLatents:
    """Return the KV cache spec of a layer."""
    facts: tuple[int, int, str] = (1, spec.head_size, cached.dtype)
    if spec.window is not None:
        return SlidingLatents(*facts, scaled=cached.scaled, window=spec.window)
    top_k = 0 if spec.indexer is None else spec.indexer.top_k
    return LatentKeys(*facts, scaled=cached.scaled, top_k=top_k)


def _make_indexer(
    spec: LatentAttentionSpec,
    hidden: int,
    prefix: str,
    rotary: Rotary | None,
    context: BuildContext,
    weights: WeightMap,
) -> Indexer | None:
    """Return the layer's own indexer; None if it has none, or uses an earlier layer's."""
    if spec.indexer is None:
        return None
    backend = context.attention
    if backend is not None and not hasattr(backend, "read_kv"):
        raise ModelError(
            f"{prefix} selects the tokens to attend to, which the attention backend "
            f"{type(backend).__name__} does not support; choose another with --attention-backend, "
            f"or lower --max-model-len to index_topk {spec.indexer.top_k}."
        )
    if spec.indexer.source_layer is not None:
        return None
    read = hidden if spec.indexer.reads_input else spec.query_rank
    assert read is not None, "`LatentAttentionSpec` has validated it"
    return Indexer(spec.indexer, (hidden, read), prefix, rotary, context, weights)
