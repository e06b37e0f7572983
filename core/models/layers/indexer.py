"""The lightning indexer of DeepSeek sparse attention: scores tokens with few small heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from core.model_spec.attention import NormSpec
from core.model_spec.kv import IndexKeys
from core.model_spec.parallel import ParallelGroup
from core.models.dtypes import dtype_name
from core.models.layers.linear import Linear, Slice
from core.models.layers.log_scaling import LogScaling
from core.models.layers.norm import make_norm, optional_norm
from core.models.layers.weights import WeightMap, assign_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.attention import IndexerSpec
    from core.models.layers.positions import Rotary
    from core.models.layers.sparse_attention import IndexPlan


class Indexer(nn.Module):
    """Selects the tokens that the queries of a layer attend to; every rank computes all heads.

    Keys are cached in the model's dtype. The checkpoint's FP8 keys and their Hadamard transform
    approximate the same scores. These have no common scale, which changes no selection.
    """

    def __init__(
        self,
        spec: IndexerSpec,
        sizes: tuple[int, int],
        prefix: str,
        rotary: Rotary | None,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """`sizes`: of the layer's input and of what queries are projected from."""
        super().__init__()
        hidden, query_rank = sizes
        self._spec = spec
        self._rotary = rotary
        self._rotate = context.ops.rotary
        self._linear = context.ops.linear
        dtype = dtype_name(context.dtype)
        self.kv_spec = IndexKeys(1, spec.size, dtype, top_k=spec.top_k)
        self.cache: torch.Tensor | None = None
        self.selected: torch.Tensor | None = None
        """Selection of the current step, for the layers that share it."""
        norm = NormSpec("layer", eps=spec.norm_eps, bias=True)
        self.reads_input = spec.reads_input
        own = norm if spec.reads_input else None
        name = f"{prefix}.q_input_norm"
        self.query_norm = optional_norm(own, query_rank, context, weights, name)
        self.scaling: LogScaling | None = None
        if spec.log_scaling:
            name = f"{prefix}.softmax_scaling"
            self.scaling = LogScaling(spec.heads, name, ParallelGroup(), weights)
        out = [Slice("q", spec.heads * spec.size)]
        self.query = Linear(context, weights, f"{prefix}.wq_b", query_rank, out)
        key = [Slice("k", spec.size)]
        self.key = Linear(context, weights, f"{prefix}.wk", hidden, key)
        self.key_norm = make_norm(norm, spec.size, context, weights, f"{prefix}.k_norm")
        self.head_weights = empty_parameter(spec.heads, hidden, dtype=torch.float32)
        weights.add(
            f"{prefix}.weights_proj.weight",
            self.head_weights.shape,
            lambda tensor: assign_weight(self.head_weights, tensor),
        )

    def forward(
        self, x: torch.Tensor, read: torch.Tensor, positions: torch.Tensor, plan: IndexPlan
    ) -> torch.Tensor | None:
        """Return the positions that the long queries of the step attend to; None: there are none.

        Queries are projected from `read`; keys are written to the cache.
        """
        spec = self._spec
        read = read if self.query_norm is None else self.query_norm(read)
        query = self.query(read).view(-1, spec.heads, spec.size)
        if self.scaling is not None:
            query = self.scaling(query, positions)
        key = self.key_norm(self.key(x))[:, None]
        if self._rotary is not None:
            query, key = self._rotated(query, key, positions, self._rotary.cos_sin)
        weights = self._linear(x.float(), self.head_weights)
        assert self.cache is not None, "bind_kv was not called"
        self.selected = plan.select(query, weights, key[:, 0], self.cache)
        return self.selected

    def _rotated(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        positions: torch.Tensor,
        table: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return query and key after RoPE of their leading or trailing part."""
        start = self._spec.size - table.shape[1] if self._spec.rope_at_end else 0
        parts = (query[..., start:], key[..., start:])
        ends = self._rotate(*parts, table, positions, self._spec.interleaved)
        if not start:
            return ends
        whole = zip((query, key), ends, strict=True)
        query, key = (torch.cat([x[..., :start], end], dim=-1) for x, end in whole)
        return query, key
