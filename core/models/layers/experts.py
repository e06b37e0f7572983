"""The experts of a layer: where checkpoints keep their weights, and what the chosen ones give.

Knows no router.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from core.contracts.part import Part
from core.errors import ModelError
from core.models.layers.kept import KeptLayer, method_of, plain_method, put_onto
from core.models.layers.weights import Slot, WeightMap, empty_parameter, fill
from core.models.ops.reference import EXPERTS

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.decoder import MoeSpec
    from core.model_spec.names import WeightNames


class ExpertsAdapter(Protocol):
    """Adds to the products of experts (low-rank adapters)."""

    def __call__(
        self,
        layer: Experts,
        matrix: str,
        x: torch.Tensor,
        out: torch.Tensor,
        tokens: torch.Tensor,
        experts: torch.Tensor,
    ) -> torch.Tensor:
        """Return the changed product, before the ranks' are summed. Changing `out` in place is
        allowed.

        Each row of x and out is of one token of the step, `tokens` [n], and of one expert,
        `experts` [n]. `matrix` is "gate_up" or "down". `layer.prefixes` has the rows of `out` by
        the checkpoint prefix of their weights, and `layer.parts` which matrix, which expert, and
        which part of the weights this rank has.
        """


class PlainExperts:
    """Two tensors of all experts: gate_up [experts, 2 * width, hidden], down [experts, hidden,
    width].
    """

    suffixes: tuple[str, ...] = ("weight",)
    endings: tuple[str, ...] = ("",)

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of one expert's weight, or of all experts'."""
        return part.shape if suffix in ("weight", "") else None

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register both; without gates the former is [experts, width, hidden]."""
        rows = (1 + bool(layer.gated)) * width
        layer.register_parameter("gate_up", empty_parameter(num_experts, rows, hidden, dtype=dtype))
        layer.register_parameter("down", empty_parameter(num_experts, hidden, width, dtype=dtype))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Copy the rank's part of one expert's weight, or of all experts'."""
        del suffix
        weight = layer.get_parameter(part.matrix).data
        for rows, own in part.plain(tensor):
            fill((weight if part.num_experts else weight[part.expert])[..., rows, :], own)

    def finish(self, layer: nn.Module) -> None:
        """Nothing to repack."""

    def apply(
        self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return what the chosen experts give by the chosen `moe` op."""
        bias = () if layer.bias is None else (layer.bias,)
        out: torch.Tensor = layer.ops.moe(
            x, layer.gate_up, layer.down, shares, experts, layer.activation, *bias
        )  # type: ignore[union-attr,operator]
        return out

    def product(
        self, layer: nn.Module, matrix: str, x: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return each row's product with the matrix of its expert, expert after expert."""
        weight = layer.get_parameter(matrix)
        out = x.new_empty(len(x), weight.shape[1])
        for index, own in enumerate(weight.unbind(0)):
            mine = experts == index
            out[mine] = layer.ops.linear(x[mine], own)  # type: ignore[union-attr,operator]
        return out


class Experts(KeptLayer):
    """This rank's part of every expert's width; what it gives is still to be summed over the ranks."""

    adapter: ExpertsAdapter | None

    def __init__(
        self,
        spec: MoeSpec,
        hidden: int,
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.ops = context.ops
        self.gated = spec.gated
        self.adapter = None
        self.activation = spec.activation if spec.gated else f"{spec.activation}_alone"
        self._group = context.group
        self._spec = spec
        self._hidden = hidden
        self.width = self._group.share(spec.width, "expert width")
        prefix = names.expert.format("") if names.expert else names.experts_gate_up
        prefix = f"{layer}.{prefix.rpartition('.')[0]}"
        method = method_of(context.quant, "experts", prefix) or plain_method(
            context, "experts", prefix
        )
        self.method = put_onto(
            method or PlainExperts(),
            lambda: plain_method(context, "experts", prefix) or PlainExperts(),
        )
        self.parts: dict[str, Part] = self._each(names, layer) if names.expert else {}
        self.method.create(self, spec.experts, self.width, hidden, context.dtype)
        self.bias: nn.Parameter | None
        self.down_bias: nn.Parameter | None
        self.register_parameter("bias", None)
        self.register_parameter("down_bias", None)
        if names.expert_gate_up:
            self._expect_all_or_each(names, layer, weights)
        elif names.expert:
            self._expect_each(names, layer, weights)
        elif names.experts_layout == "stacked":
            self._expect_stacked(names, layer, weights)
        else:
            for name, slot in self._together(names, layer).items():
                weights.add(name, slot.shape, slot.fill, slot.then)
        if spec.bias:
            self._expect_biases(names, layer, context, weights)
        self.prefixes = {name: part.target for name, part in self.parts.items()}
        """By checkpoint prefix: the rows of its weights in the products of their matrix."""

    def forward(self, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden]: what each token's experts [n, k] give, times their shares, from this
        rank's width.
        """
        if self.adapter is None:
            return self.method.apply(self, x, shares, experts)  # type: ignore[no-any-return]
        if not hasattr(self.method, "product"):
            raise ModelError(
                f"{type(self.method).__name__} has no `product`, so its experts take no adapter."
            )
        chosen = experts.flatten()
        tokens = torch.arange(len(x), device=x.device).repeat_interleave(experts.shape[1])
        x = self._adapted("gate_up", x[tokens], tokens, chosen)
        x = x if self.bias is None else x + self.bias[chosen]
        x = self._adapted("down", EXPERTS[self.activation](x), tokens, chosen)
        return (
            (x.view(*experts.shape, -1).float() * shares.float().unsqueeze(-1)).sum(1).to(x.dtype)
        )

    def _adapted(
        self, matrix: str, x: torch.Tensor, tokens: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        assert self.adapter is not None, "without one the method applies all at once"
        return self.adapter(
            self, matrix, x, self.method.product(self, matrix, x, experts), tokens, experts
        )

    def _expect_each(self, names: WeightNames, layer: str, weights: WeightMap) -> None:
        """Expect three tensors of each expert, or all experts' in a few."""
        found: list[str] = []
        for prefix, part in self.parts.items():
            self.expect(weights, prefix, part)
            found += [f"{prefix}.{suffix}" for suffix in self.facts(prefix).suffixes]
        weights.add_group_instead(self._together(names, layer), found)

    def _expect_all_or_each(self, names: WeightNames, layer: str, weights: WeightMap) -> None:
        """Expect all experts' weights in two tensors, or each expert's in two."""
        each: dict[str, Slot] = {}
        for prefix, part in self.parts.items():
            facts = self.facts(prefix)
            each |= self.slots(prefix, ".", facts.suffixes, part)
            for name, slot in self.slots(
                prefix, ".", getattr(facts, "optional_suffixes", ()), part
            ).items():
                weights.add_instead(name, slot.shape, slot.fill, (), slot.then)
        together = self._together(names, layer)
        for name, slot in together.items():
            weights.add(name, slot.shape, slot.fill, slot.then)
        weights.add_group_instead(each, tuple(together))

    def _each(self, names: WeightNames, layer: str) -> dict[str, Part]:
        """Return the part of every expert's matrices that is this rank's."""
        parts: dict[str, Part] = {}
        turns = bool(names.expert_gate_up) and names.experts_layout == "interleaved"
        places = [(names.expert_gate, range(1)), (names.expert_up, range(1, 2))]
        if names.expert_gate_up or not self.gated:
            places = [(names.expert_gate_up or names.expert_up, range(1 + self.gated))]
        for index in range(self._spec.experts):
            expert = f"{layer}.{names.expert.format(index)}"
            for name, halves in places:
                parts[f"{expert}.{name}"] = self._part("gate_up", halves, turns=turns, expert=index)
            parts[f"{expert}.{names.expert_down}"] = self._part("down", expert=index)
        return parts

    def _together(self, names: WeightNames, layer: str) -> dict[str, Slot]:
        """Return where tensors of all experts go, in the checkpoint's layout."""
        count = self._spec.experts
        turns = names.experts_layout == "interleaved"
        across = turns or names.experts_layout == "columns"
        halves = range(1 + self.gated)
        own = {
            f"{layer}.{names.experts_gate_up}": self._part(
                "gate_up", halves, turns=turns, num_experts=count, transposed=across
            ),
            f"{layer}.{names.experts_down}": self._part(
                "down", num_experts=count, transposed=across
            ),
        }
        self.parts |= own
        return {
            name: slot
            for prefix, part in own.items()
            for name, slot in self.slots(prefix, "", self.method.endings, part).items()
        }

    def _expect_stacked(self, names: WeightNames, layer: str, weights: WeightMap) -> None:
        """Expect [experts * width, hidden] of gate, up and down."""
        count = self._spec.experts
        width = self._spec.width
        hidden = self._hidden
        own = {
            names.experts_gate_up: self._part("gate_up", range(1), num_experts=count),
            names.experts_up: self._part("gate_up", range(1, 2), num_experts=count),
            names.experts_down: self._part("down", num_experts=count, transposed=True),
        }
        for name, part in own.items():
            self.parts[f"{layer}.{name}"] = part
            for whole, slot in self.slots(f"{layer}.{name}", "", self.method.endings, part).items():
                shape = (count * width, hidden) if slot.shape == (count, width, hidden) else None
                weights.add(whole, shape, partial(self._unstack, slot), slot.then)

    def _unstack(self, slot: Slot, tensor: torch.Tensor) -> None:
        slot.fill(tensor.view(self._spec.experts, -1, self._hidden))

    def _part(
        self,
        matrix: str,
        halves: range = range(1),
        *,
        turns: bool = False,
        expert: int = 0,
        num_experts: int = 0,
        transposed: bool = False,
    ) -> Part:
        """Return this rank's part of a tensor of one matrix.

        `halves` of gate_up are in it, 0 and 1 or one of them; `turns`: their rows come in turn.
        """
        whole = self._spec.width
        own = self._group.own(self._spec.width)
        hidden = slice(0, self._hidden)
        pieces: tuple[tuple[slice, slice], ...] = ((hidden, hidden),)
        if matrix == "gate_up":
            pieces = tuple(
                (
                    slice(2 * own.start + at, 2 * own.stop, 2)
                    if turns
                    else slice(at * whole + own.start, at * whole + own.stop),
                    slice(half * self.width, (half + 1) * self.width),
                )
                for at, half in enumerate(halves)
            )
        return Part(
            pieces=pieces,
            columns_in=own if matrix == "down" else hidden,
            out_features=self._hidden if matrix == "down" else len(halves) * whole,
            in_features=whole if matrix == "down" else self._hidden,
            transposed=transposed,
            matrix=matrix,
            expert=expert,
            num_experts=num_experts,
        )

    def _expect_biases(
        self, names: WeightNames, layer: str, context: BuildContext, weights: WeightMap
    ) -> None:
        """Expect the biases beside the tensors of all experts, or beside those of each."""
        count = self._spec.experts
        name = f"{layer}.{names.experts_gate_up}"
        part = self.parts[name]
        bias = empty_parameter(count, part.target.stop, dtype=context.dtype)
        down_bias = empty_parameter(count, self._hidden, dtype=context.dtype)
        self.register_parameter("bias", bias)
        self.register_parameter("down_bias", down_bias)
        together = {
            f"{name}_bias": Slot(
                (count, part.out_features), lambda tensor: fill(bias.data, part.rows(tensor, 1))
            ),
            f"{layer}.{names.experts_down}_bias": Slot(
                (count, self._hidden), partial(fill, down_bias.data)
            ),
        }
        for name, slot in together.items():
            weights.add(name, slot.shape, slot.fill)
        if names.expert:
            each = {
                f"{prefix}.bias": Slot((own.out_features,), partial(self._take_bias, own))
                for prefix, own in self.parts.items()
                if not own.num_experts
            }
            weights.add_group_instead(each, tuple(together))

    def _take_bias(self, part: Part, tensor: torch.Tensor) -> None:
        whole = self.get_parameter("bias" if part.matrix == "gate_up" else "down_bias").data
        fill(whole[part.expert, part.target], part.rows(tensor))
