"""Linear attention layers: the gated delta rule and lightning attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F
from torch import nn

from core.model_spec.attention import NormSpec
from core.model_spec.kv import RecurrentState
from core.models.layers.linear import Linear, Slice
from core.models.layers.mlp import make_activation
from core.models.layers.norm import make_norm
from core.models.layers.short_conv import ShortConv
from core.models.layers.state import state_dtype
from core.models.layers.weights import copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.recurrent import GatedDeltaSpec, LightningSpec
    from core.models.layers.state import SegmentGroup, StatePlan, States
    from core.models.layers.weights import WeightMap


_APART: Final = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "write": "b_proj"}
_JOINED: Final = dict.fromkeys("qkv", "in_proj_qkv")
_FIRST: Final[dict[str, dict[str, str]]] = {
    "joined": {**_JOINED, "gate": "in_proj_z", "write": "in_proj_b", "forget": "in_proj_a"},
    "apart": {**_APART, "gate": "g_proj", "forget": "a_proj"},
    "low_rank": {**_APART, "gate": "g_a_proj", "forget": "f_a_proj"},
    "full_rank": {**_APART, "gate": "g_proj", "forget": "f_proj"},
}
"""Tensor name of each input projection slice, by layout, except "grouped"."""
_LAST: Final = {"grouped": ("norm", "out_proj"), "joined": ("norm", "out_proj")}
"""Names of output norm and projection by layout; otherwise o_norm and o_proj."""
_BY_CHANNEL: Final = ("low_rank", "full_rank")
"""Layouts with a decay per channel of the keys, and a sigmoid of the gate."""


class GatedDelta(nn.Module):
    """Gated delta rule: each head's key-value state decays and is corrected token by token.

    Heads are split over ranks. State: the convolution's last inputs and [heads, key_size,
    value_size].
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
            group.share(count, "heads of linear attention")
            for count in (spec.heads, spec.key_heads)
        )
        sizes = [spec.key_heads * spec.key_size] * 2 + [spec.heads * spec.value_size]
        self._expect_first(sizes, hidden, prefix, context, weights)
        self._sizes = [group.share(size, "width of linear attention") for size in sizes]
        joined = spec.layout in _LAST
        fed = [
            Slice(name, size, "" if joined else f"{prefix}.{name}_conv1d")
            for name, size in zip("qkv", sizes, strict=True)
        ]
        self.conv = ShortConv(
            fed,
            spec.kernel,
            context,
            weights,
            f"{prefix}.conv1d",
            bias=False,
            activation=spec.activation,
        )
        by_channel = spec.layout in _BY_CHANNEL
        falling = spec.key_size if by_channel else 1
        self.rate = empty_parameter(self.heads, dtype=torch.float32)
        self.forget_bias = bias = empty_parameter(self.heads * falling, dtype=torch.float32)
        shape = (1, 1, spec.heads, 1) if spec.layout == "low_rank" else (spec.heads,)
        weights.add(f"{prefix}.A_log", shape, self._load_rate)
        shape_of_bias = (spec.heads * falling,)
        weights.add(
            f"{prefix}.dt_bias",
            shape_of_bias,
            lambda tensor: copy_weight(bias.data, group.cut(tensor, 0)),
        )
        norm, out = _LAST.get(spec.layout, ("o_norm", "o_proj"))
        self.norm = empty_parameter(spec.value_size, dtype=torch.float32)
        weights.add(
            f"{prefix}.{norm}.weight",
            self.norm.shape,
            lambda tensor: copy_weight(self.norm.data, tensor),
        )
        last = [Slice("out", hidden)]
        self.out_proj = Linear(context, weights, f"{prefix}.{out}", sizes[2], last, split="columns")
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
        """Build the input projections; low-rank ones have a narrow first part on every rank."""
        spec = self.spec
        key, _, value = sizes_of_qkv
        sizes = {
            "q": key,
            "k": key,
            "v": value,
            "gate": value,
            "write": spec.heads,
            "forget": spec.heads,
        }
        if spec.layout == "grouped":
            self._expect_grouped(sizes, hidden, prefix, context, weights)
            return
        if spec.layout == "full_rank":
            sizes["forget"] = spec.heads * spec.key_size
        narrow = ("gate", "forget") if spec.layout == "low_rank" else ()
        if spec.layout == "low_rank":
            sizes |= {"gate": spec.key_size, "forget": spec.key_size}
            wide = {"gate": ("g_b_proj", value), "forget": ("f_b_proj", spec.heads * spec.key_size)}
            self.wide = nn.ModuleDict()
            for part, (name, size) in wide.items():
                last = [Slice(part, size)]
                name = f"{prefix}.{name}"
                self.wide[part] = Linear(context, weights, name, spec.key_size, last, split="rows")
        names = _FIRST[spec.layout]
        slices = [
            Slice(part, sizes[part], f"{prefix}.{name}", parts=1 if part in narrow else None)
            for part, name in names.items()
        ]
        self.in_proj = Linear(context, weights, slices[0].prefix, hidden, slices, split="rows")

    def _expect_grouped(
        self,
        sizes: Mapping[str, int],
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """Build the two input projections with rows grouped by key head."""
        spec = self.spec
        joined = [Slice(name, sizes[name]) for name in ("q", "k", "v", "gate")]
        small = [Slice(name, sizes[name]) for name in ("write", "forget")]
        each = spec.heads // spec.key_heads
        widths = [spec.key_size, spec.key_size, each * spec.value_size, each * spec.value_size]
        order = _by_part(spec.key_heads, widths)
        name = f"{prefix}.in_proj_qkvz"
        self.in_proj = Linear(context, weights, name, hidden, joined, split="rows", order=order)
        order = _by_part(spec.key_heads, [each, each])
        name = f"{prefix}.in_proj_ba"
        self.decay_proj = Linear(context, weights, name, hidden, small, split="rows", order=order)

    def _load_rate(self, tensor: torch.Tensor) -> None:
        copy_weight(self.rate.data, self._group.cut(tensor.view(-1), 0))
        self.rate.data.exp_().neg_()

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        spec = self.spec
        first = self.in_proj(x)
        parts = {name: first[:, rows] for name, rows in self.in_proj.slices.items()}
        if spec.layout == "grouped":
            second = self.decay_proj(x)
            parts |= {name: second[:, rows] for name, rows in self.decay_proj.slices.items()}
        elif spec.layout == "low_rank":
            parts |= {name: product(parts[name]) for name, product in self.wide.items()}
        write = parts["write"].float().sigmoid() * spec.max_beta
        forget = (parts["forget"].float() + self.forget_bias).view(len(x), self.heads, -1)
        if spec.decay_floor is None:
            decay = F.softplus(forget) * self.rate[:, None]  # [num_tokens, heads, key_size | 1]
        else:
            decay = (forget * -self.rate[:, None]).sigmoid() * spec.decay_floor
        decay = decay if spec.layout in _BY_CHANNEL else decay[..., 0]
        out = plan.compute(self._segments, first[:, : sum(self._sizes)], write, decay)
        out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + spec.eps) * self.norm
        gate = parts["gate"].float().view(out.shape)
        is_sigmoid = spec.sigmoid_gate or spec.layout in _BY_CHANNEL
        out = out * (gate.sigmoid() if is_sigmoid else F.silu(gate))
        return self.out_proj(out.flatten(1).to(x.dtype))  # type: ignore[no-any-return]

    def _segments(
        self, run: SegmentGroup, fed: torch.Tensor, write: torch.Tensor, decay: torch.Tensor
    ) -> torch.Tensor:
        """Return the delta-rule output, [n, length, heads, value_size] in float32."""
        assert self.cache is not None, "bind_kv was not called"
        spec = self.spec
        inputs, states = self.cache
        query, key, value = self.conv(fed, run, inputs).split(self._sizes, -1)
        query, key = (part.view(run.count, run.length, self.key_heads, -1) for part in (query, key))
        value = value.view(run.count, run.length, self.heads, -1)
        given = (query, key, value, decay, write, run.load(states))
        out, last = self._scan(*given, spec.key_size**-0.5)
        run.store(states, last)
        return out


def _by_part(groups: int, widths: list[int]) -> list[int]:
    """Return the order of row blocks that changes group-major rows to part-major rows.

    A block has the greatest common divisor of the parts' widths.
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


class Lightning(nn.Module):
    """Lightning attention: a key-value state per head with a fixed decay.

    Heads are split over ranks. State: [heads, value, key].
    """

    def __init__(
        self,
        spec: LightningSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.spec = spec
        self._scan = context.ops.ssd_scan  # with all steps equal to 1
        width = spec.heads * spec.head_size
        # Checkpoint rows are grouped by head: query, key, value.
        order = [3 * head + part for part in range(3) for head in range(spec.heads)]
        slices = [Slice(name, width) for name in ("query", "key", "value")]
        self.in_proj = Linear(
            context, weights, f"{prefix}.qkv_proj", hidden, slices, split="rows", order=order
        )
        self.activation = make_activation(
            spec.activation, gated=False, prefix=prefix, context=context, weights=weights
        )
        gate = [Slice("gate", width)]
        out = [Slice("out", hidden)]
        self.gate = Linear(context, weights, f"{prefix}.output_gate", hidden, gate, split="rows")
        self.norm = make_norm(NormSpec(eps=spec.eps), width, context, weights, f"{prefix}.norm")
        self.out_proj = Linear(context, weights, f"{prefix}.out_proj", width, out, split="columns")
        self._group = context.group
        self.heads = context.group.share(spec.heads, "heads of linear attention")
        self.register_buffer("rates", -self._group.cut(torch.tensor(spec.rates), 0))
        state = (self.heads, spec.head_size, spec.head_size)
        self.kv_spec = RecurrentState(((state, state_dtype(context)),))
        self.cache: States | None = None

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        out = plan.compute(self._segments, self.activation(self.in_proj(x))).to(x.dtype)
        out = self._group.cut(self.norm(self._group.all_gather(out)), 1)
        return self.out_proj(out * self.gate(x).sigmoid())  # type: ignore[no-any-return]

    def _segments(self, run: SegmentGroup, fed: torch.Tensor) -> torch.Tensor:
        """Return the attention output, [n, length, width] in float32."""
        assert self.cache is not None, "bind_kv was not called"
        parts = fed.view(run.count, run.length, 3, self.heads, self.spec.head_size)
        query, key, value = parts.unbind(2)
        steps = torch.ones(run.count, run.length, self.heads, device=fed.device)
        out, last = self._scan(value, steps, self.rates, key, query, run.load(self.cache[0]))
        run.store(self.cache[0], last)
        return out.flatten(2)
