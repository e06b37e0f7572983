"""mLSTM of xLSTM: linear attention with an exponential input gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F
from torch import nn

from core.model_spec.kv import RecurrentState
from core.models.layers.linear import Linear, Slice
from core.models.layers.state import state_dtype
from core.models.layers.weights import copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.recurrent import MLstmSpec
    from core.models.layers.state import SegmentGroup, StatePlan, States
    from core.models.layers.weights import WeightMap

CHUNK: Final = 64
"""Tokens computed as one matrix product."""


class MLstm(nn.Module):
    """mLSTM: each head's key-value state decays, and gates weigh what a token adds.

    Heads are split over ranks. State: [heads, key_size, value_size + 1], of which the last column
    is the normaliser, and the logarithm of its common factor per head.
    """

    def __init__(
        self, spec: MLstmSpec, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
    ) -> None:
        super().__init__()
        self.spec = spec
        self._softcap = context.ops.softcap
        group = context.group
        self.heads = group.share(spec.heads, "heads of an mLSTM")
        width = spec.heads * spec.value_size
        sizes = {"q": spec.heads * spec.key_size, "k": spec.heads * spec.key_size, "v": width}
        sizes["ogate_preact"] = width
        gates = dict.fromkeys(("igate_preact", "fgate_preact"), spec.heads)
        self.in_proj, self.gate_proj = (
            Linear(
                context,
                weights,
                prefix,
                hidden,
                [Slice(name, size, f"{prefix}.{name}") for name, size in of.items()],
                split="rows",
                bias=of is gates,
            )
            for of in (sizes, gates)
        )
        self.norm = empty_parameter(group.share(width, "width of an mLSTM"), dtype=torch.float32)
        weights.add(
            f"{prefix}.multihead_norm.weight",
            (width,),
            lambda tensor: copy_weight(self.norm.data, group.cut(tensor, 0)),
        )
        self.out_proj = Linear(
            context, weights, f"{prefix}.out_proj", width, [Slice("out", hidden)], split="columns"
        )
        state = (self.heads, spec.key_size, spec.value_size + 1)
        dtype = state_dtype(context)
        self.kv_spec = RecurrentState(((state, dtype), ((self.heads,), dtype)))
        self.cache: States | None = None

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        parts = self.in_proj(x)
        rows = self.in_proj.slices
        gates = self._softcap(self.gate_proj(x).float(), self.spec.gate_softcap)
        out = plan.compute(self._segments, parts[:, : rows["v"].stop], gates)
        out = F.layer_norm(out, out.shape[-1:], eps=self.spec.norm_eps).flatten(1) * self.norm
        gate = parts[:, rows["ogate_preact"]].sigmoid()
        return self.out_proj(out.to(x.dtype) * gate)  # type: ignore[no-any-return]

    def _segments(self, run: SegmentGroup, fed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """Return the heads' outputs, [n, length, heads, value_size] in float32."""
        assert self.cache is not None, "bind_kv was not called"
        states = [run.load(part).float() for part in self.cache]
        query, key, value = (
            fed[..., self.in_proj.slices[name]]
            .float()
            .reshape(run.count, run.length, self.heads, -1)
            .transpose(1, 2)
            for name in ("q", "k", "v")
        )
        value = F.pad(value, (0, 1), value=1.0)
        input_gate, forget_gate = gates.transpose(1, 2).chunk(2, 1)
        forget_gate = F.logsigmoid(forget_gate)
        chunks = []
        for at in range(0, run.length, CHUNK):
            here = slice(at, at + CHUNK)
            parts = [part[:, :, here] for part in (query, key, value, input_gate, forget_gate)]
            out, states = self._chunk(parts, states)
            chunks.append(out)
        for part, last in zip(self.cache, states, strict=True):
            run.store(part, last)
        return torch.cat(chunks, dim=2).transpose(1, 2)

    def _chunk(
        self, parts: Sequence[torch.Tensor], states: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the outputs [n, heads, length, value_size] of some tokens and the states after.

        `parts` are queries, keys, values and the logarithms of both gates, [n, heads, length, ...].
        """
        query, key, value, input_gate, forget_gate = parts
        state, scale = states
        length = query.shape[2]
        since_start = forget_gate.cumsum(-1)
        weights = since_start[..., None] - since_start[..., None, :] + input_gate[..., None, :]
        later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        weights = weights.masked_fill(later, -torch.inf)
        start = since_start + scale[..., None]
        highest = torch.maximum(start, weights.amax(-1))
        weights = (weights - highest[..., None]).exp()
        start = (start - highest).exp()[..., None]
        query = query * self.spec.key_size**-0.5
        out = ((query @ key.mT) * weights) @ value + start * (query @ state)
        norm = torch.maximum(out[..., -1].abs(), (-highest).exp()) + self.spec.eps
        out = out[..., :-1] / norm[..., None]
        state = start[:, :, -1:] * state + (key * weights[:, :, -1, :, None]).mT @ value
        return out, [state, highest[..., -1]]
