"""The gated delta rule: each head keeps a memory of values by keys, forgets a part of it and
corrects it, token by token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F
from torch import nn

from core.model_spec.kv import RecurrentState
from core.models.layers.linear import Linear, Slice
from core.models.layers.short_conv import ShortConv
from core.models.layers.state import state_dtype
from core.models.layers.weights import empty_parameter, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.recurrent import GatedDeltaSpec
    from core.models.layers.state import Run, StatePlan, States
    from core.models.layers.weights import WeightMap

_APART: Final = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "write": "b_proj"}
_JOINED: Final = dict.fromkeys("qkv", "in_proj_qkv")
_FIRST: Final[dict[str, dict[str, str]]] = {
    "joined": {**_JOINED, "gate": "in_proj_z", "write": "in_proj_b", "forget": "in_proj_a"},
    "apart": {**_APART, "gate": "g_proj", "forget": "a_proj"},
    "low_rank": {**_APART, "gate": "g_a_proj", "forget": "f_a_proj"},
}
"""Slice of the first product to its tensor, where they are not grouped."""
_LAST: Final = {"grouped": ("norm", "out_proj"), "joined": ("norm", "out_proj")}
"""Names of the last norm and product; otherwise o_norm and o_proj."""


class GatedDelta(nn.Module):
    """One layer, its heads split over ranks.

    Its state: the convolution's last inputs, and [heads, key_size, value_size].
    """

    def __init__(
        self,
        spec: GatedDeltaSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.spec = spec
        self._scan = context.ops.delta_scan
        self._group = group = context.group
        self.heads, self.key_heads = (
            group.share(count, "heads of a memory") for count in (spec.heads, spec.key_heads)
        )
        sizes = [spec.key_heads * spec.key_size] * 2 + [spec.heads * spec.value_size]
        self._expect_first(sizes, hidden, prefix, context, weights)
        self._sizes = [group.share(size, "width of a memory") for size in sizes]
        joined = spec.layout in _LAST
        fed = [
            Slice(name, size, "" if joined else f"{prefix}.{name}_conv1d")
            for name, size in zip("qkv", sizes, strict=True)
        ]
        self.conv = ShortConv(fed, spec.kernel, context, weights, f"{prefix}.conv1d", bias=False)
        by_channel = spec.layout == "low_rank"
        falling = spec.key_size if by_channel else 1
        self.rate = empty_parameter(self.heads, dtype=torch.float32)
        self.forget_bias = bias = empty_parameter(self.heads * falling, dtype=torch.float32)
        shape = (1, 1, spec.heads, 1) if by_channel else (spec.heads,)
        weights.add(f"{prefix}.A_log", shape, self._take_rate)
        shape_of_bias = (spec.heads * falling,)
        weights.add(
            f"{prefix}.dt_bias", shape_of_bias, lambda tensor: fill(bias.data, group.cut(tensor, 0))
        )
        norm, out = _LAST.get(spec.layout, ("o_norm", "o_proj"))
        self.norm = empty_parameter(spec.value_size, dtype=torch.float32)
        weights.add(
            f"{prefix}.{norm}.weight", self.norm.shape, lambda tensor: fill(self.norm.data, tensor)
        )
        last = [Slice("out", hidden)]
        self.outward = Linear(context, weights, f"{prefix}.{out}", sizes[2], last, split="columns")
        state = (self.heads, spec.key_size, spec.value_size)
        self.kv_spec = RecurrentState((self.conv.state_part, (state, state_dtype(context))))
        self.cache: States | None = None

    def _expect_first(
        self,
        sizes_of_qkv: Sequence[int],
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """Make the products of the layer's input, and those behind a narrow first one, which every
        rank computes.
        """
        spec, (key, _, value) = self.spec, sizes_of_qkv
        sizes = {
            "q": key,
            "k": key,
            "v": value,
            "gate": value,
            "write": spec.heads,
            "forget": spec.heads,
        }
        if spec.layout == "grouped":
            joined = [Slice(name, sizes[name]) for name in ("q", "k", "v", "gate")]
            small = [Slice(name, sizes[name]) for name in ("write", "forget")]
            each = spec.heads // spec.key_heads
            widths = [spec.key_size, spec.key_size, each * spec.value_size, each * spec.value_size]
            order = _by_part(spec.key_heads, widths)
            self.inward = Linear(
                context,
                weights,
                f"{prefix}.in_proj_qkvz",
                hidden,
                joined,
                split="rows",
                order=order,
            )
            order = _by_part(spec.key_heads, [each, each])
            self.forgetting = Linear(
                context, weights, f"{prefix}.in_proj_ba", hidden, small, split="rows", order=order
            )
            return
        narrow = ("gate", "forget") if spec.layout == "low_rank" else ()
        if spec.layout == "low_rank":
            sizes |= {"gate": spec.key_size, "forget": spec.key_size}
            wide = {"gate": ("g_b_proj", value), "forget": ("f_b_proj", spec.heads * spec.key_size)}
            self.wide = nn.ModuleDict(
                {
                    part: Linear(
                        context,
                        weights,
                        f"{prefix}.{name}",
                        spec.key_size,
                        [Slice(part, size)],
                        split="rows",
                    )
                    for part, (name, size) in wide.items()
                }
            )
        names = _FIRST[spec.layout]
        slices = [
            Slice(part, sizes[part], f"{prefix}.{name}", parts=1 if part in narrow else None)
            for part, name in names.items()
        ]
        self.inward = Linear(context, weights, slices[0].prefix, hidden, slices, split="rows")

    def _take_rate(self, tensor: torch.Tensor) -> None:
        fill(self.rate.data, self._group.cut(tensor.view(-1), 0))
        self.rate.data.exp_().neg_()

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        spec = self.spec
        first = self.inward(x)
        parts = {name: first[:, rows] for name, rows in self.inward.slices.items()}
        if spec.layout == "grouped":
            second = self.forgetting(x)
            parts |= {name: second[:, rows] for name, rows in self.forgetting.slices.items()}
        elif spec.layout == "low_rank":
            parts |= {name: product(parts[name]) for name, product in self.wide.items()}
        write = parts["write"].float().sigmoid() * spec.most_correction
        forget = F.softplus(parts["forget"].float() + self.forget_bias).view(len(x), self.heads, -1)
        decay = forget * self.rate[:, None]  # [num_tokens, heads, key_size | 1]
        decay = decay if spec.layout == "low_rank" else decay[..., 0]
        out = plan.compute(self._segments, first[:, : sum(self._sizes)], write, decay)
        out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + spec.eps) * self.norm
        gate = parts["gate"].float().view(out.shape)
        out = out * (gate.sigmoid() if spec.layout == "low_rank" else F.silu(gate))
        return self.outward(out.flatten(1).to(x.dtype))  # type: ignore[no-any-return]

    def _segments(
        self, run: Run, fed: torch.Tensor, write: torch.Tensor, decay: torch.Tensor
    ) -> torch.Tensor:
        """Return what the memories give, [n, length, heads, value_size] in float32."""
        assert self.cache is not None, "bind_kv was not called"
        spec, (inputs, states) = self.spec, self.cache
        query, key, value = self.conv(fed, run, inputs).float().split(self._sizes, -1)
        query = (
            _of_length_one(query.view(run.count, run.length, self.key_heads, -1))
            * spec.key_size**-0.5
        )
        key = _of_length_one(key.view(run.count, run.length, self.key_heads, -1))
        value = value.view(run.count, run.length, self.heads, -1)
        out, last = self._scan(query, key, value, decay, write, run.load(states))
        run.store(states, last)
        return out


def _of_length_one(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _by_part(groups: int, widths: list[int]) -> list[int]:
    """Return the order of rows, in blocks of their greatest common width, that turns group by group
    into part by part.
    """
    size = math.gcd(*widths)
    blocks = [width // size for width in widths]
    starts = [sum(blocks[:i]) for i in range(len(blocks))]
    return [
        group * sum(blocks) + start + at
        for start, count in zip(starts, blocks, strict=True)
        for group in range(groups)
        for at in range(count)
    ]
