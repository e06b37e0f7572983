"""The experts of an MoE layer: their weights in a checkpoint, and their computation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from core.errors import ModelError
from core.model_spec.layer import SWIGLU_CLAMPS
from core.model_spec.weight_shard import WeightShard
from core.models.layers.quantization import (
    QuantizedLayer,
    layer_method,
    plain_method,
    with_plain_method,
)
from core.models.layers.weights import WeightMap, WeightSlot, copy_weight, empty_parameter
from core.models.ops.activations import EXPERTS, expert_activation
from core.models.ops.torch_impls import grouped_moe

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.layer import MoeSpec
    from core.model_spec.names import WeightNames


class ExpertsAdapter(Protocol):
    """Adapter (LoRA) of experts."""

    def __call__(
        self,
        layer: Experts,
        matrix: str,
        x: torch.Tensor,
        out: torch.Tensor,
        tokens: torch.Tensor,
        experts: torch.Tensor,
    ) -> torch.Tensor:
        """Return the adapted product, before the sum over ranks; may modify `out` in place.

        Row i of x and out belongs to token `tokens[i]` of the step and to expert `experts[i]`.
        `matrix` is "gate_up" or "down". `layer.prefixes` maps a checkpoint prefix to its rows of
        `out`, and `layer.parts` to the matrix, the expert and this rank's weights.
        """


class PlainExperts:
    """Unquantized experts: gate_up [experts, 2 * width, hidden], down [experts, hidden, width]."""

    suffixes: tuple[str, ...] = ("weight",)
    stacked_suffixes: tuple[str, ...] = ("",)
    supports_expert_map = True

    def shape(self, suffix: str, part: WeightShard) -> tuple[int, ...] | None:
        """Return the checkpoint shape of one expert's weight, or of all experts' weights."""
        return part.shape if suffix in ("weight", "") else None

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register both tensors; without gates, gate_up is [experts, width, hidden]."""
        rows = (1 + bool(layer.gated)) * width
        layer.register_parameter("gate_up", empty_parameter(num_experts, rows, hidden, dtype=dtype))
        layer.register_parameter("down", empty_parameter(num_experts, hidden, width, dtype=dtype))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: WeightShard) -> None:
        """Copy this rank's part of one expert's weight, or of all experts' weights."""
        del suffix
        weight = layer.get_parameter(part.matrix).data
        for rows, own in part.plain(tensor):
            copy_weight((weight if part.num_experts else weight[part.expert])[..., rows, :], own)

    def finish(self, layer: nn.Module) -> None:
        """Nothing to repack."""

    def apply(
        self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return the output of the chosen experts, by the `moe` op."""
        bias = () if layer.bias is None else (layer.bias,)
        has_op = str(layer.activation) in EXPERTS  # without limits, or numbers of its own
        moe: Any = layer.ops.moe if has_op else grouped_moe  # type: ignore[union-attr]
        args = (x, layer.gate_up, layer.down, shares, experts, layer.activation)
        return moe(*args, *bias)  # type: ignore[no-any-return]

    def product(
        self, layer: nn.Module, matrix: str, x: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return each row's product with the matrix of its expert, one expert at a time."""
        weight = layer.get_parameter(matrix)
        out = x.new_empty(len(x), weight.shape[1])
        for index, own in enumerate(weight.unbind(0)):
            mine = experts == index
            out[mine] = layer.ops.linear(x[mine], own)  # type: ignore[union-attr,operator]
        return out


class Experts(QuantizedLayer):
    """This rank's part of every expert's width, or its experts with `MoeSpec.placement`.

    Outputs are not yet summed over ranks.
    """

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
        if spec.limit is not None:
            self.activation += f":{spec.limit}"
        numbers = spec.softcaps or spec.clamps
        if numbers is not None and numbers != SWIGLU_CLAMPS:
            self.activation += ":{},{}".format(*numbers)
        self._group = context.group
        self._spec = spec
        self._hidden = hidden
        self._own = spec.experts_of(self._group.rank, self._group.size)
        """Numbers of this rank's experts in the model."""
        is_whole = bool(spec.placement)
        self.width = spec.width if is_whole else self._group.share(spec.width, "expert width")
        prefix = names.expert.format("") if names.expert else names.experts_gate_up
        prefix = f"{layer}.{prefix.rpartition('.')[0]}"
        method = layer_method(context.quant, "experts", prefix) or plain_method(
            context, "experts", prefix
        )
        self.method = with_plain_method(
            method or PlainExperts(),
            lambda: plain_method(context, "experts", prefix) or PlainExperts(),
        )
        self._each = self._parts_of_each(names, layer) if names.expert else {}
        self.parts = {name: part for name, part in self._each.items() if part.expert >= 0}
        self.method.create(self, len(self._own), self.width, hidden, context.dtype)
        self._register_expert_map(weights)
        self.bias: nn.Parameter | None
        self.down_bias: nn.Parameter | None
        self.register_parameter("bias", None)
        self.register_parameter("down_bias", None)
        if names.expert_gate_up:
            self._expect_all_or_each(names, layer, weights)
        elif names.expert:
            self._expect_each(names, layer, weights)
        elif names.experts_layout in ("stacked", "apart"):
            self._expect_stacked(names, layer, weights)
        else:
            for name, slot in self._stacked_slots(names, layer).items():
                weights.add_slot(name, slot)
        if spec.bias:
            self._expect_biases(names, layer, context, weights)
        self.prefixes = {name: part.target for name, part in self.parts.items()}
        """Rows of each checkpoint prefix in the output of its matrix."""

    def forward(self, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden]: this rank's weighted sum of each token's experts [n, k]."""
        if self.expert_map is not None:
            experts = self.expert_map[experts]
            shares = shares.masked_fill(experts == len(self._own), 0.0)
            if not getattr(self.method, "supports_expert_map", False):
                experts = experts.clamp(max=len(self._own) - 1)
        if self.adapter is None:
            return self.method.apply(self, x, shares, experts)  # type: ignore[no-any-return]
        if not hasattr(self.method, "product"):
            raise ModelError(
                f"{type(self.method).__name__} has no `product`, so its experts support no adapter."
            )
        chosen = experts.flatten()
        tokens = torch.arange(len(x), device=x.device).repeat_interleave(experts.shape[1])
        x = self._adapted("gate_up", x[tokens], tokens, chosen)
        x = x if self.bias is None else x + self.bias[chosen]
        x = self._adapted("down", expert_activation(self.activation)(x), tokens, chosen)
        return (
            (x.view(*experts.shape, -1).float() * shares.float().unsqueeze(-1)).sum(1).to(x.dtype)
        )

    def _adapted(
        self, matrix: str, x: torch.Tensor, tokens: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        assert self.adapter is not None, "no adapter is set"
        return self.adapter(
            self, matrix, x, self.method.product(self, matrix, x, experts), tokens, experts
        )

    def _register_expert_map(self, weights: WeightMap) -> None:
        """Register this rank's number of each expert of the model, unless the rank has all."""
        self.expert_map: torch.Tensor | None
        self.register_buffer("expert_map", None)
        if len(self._own) < self._spec.experts:
            numbers = torch.empty(self._spec.experts, dtype=torch.int64)
            self.register_buffer("expert_map", numbers, persistent=False)
            self._number_experts()
            weights.after_load(self._number_experts)  # its memory may have been released

    def _number_experts(self) -> None:
        """Number this rank's experts; those of other ranks have the number after its last."""
        assert self.expert_map is not None, "the rank has all experts"
        own = torch.arange(len(self._own), device=self.expert_map.device)
        self.expert_map.fill_(len(self._own))
        self.expert_map[self._own_experts] = own

    def slots(
        self, prefix: str, separator: str, suffixes: tuple[str, ...], part: WeightShard
    ) -> dict[str, WeightSlot]:
        """Return the weight slots of tensors of one expert or of all the model's experts."""
        found = super().slots(prefix, separator, suffixes, part)
        if part.expert < 0:
            return {name: _unread(slot) for name, slot in found.items()}
        if not part.num_experts or self.expert_map is None:
            return found
        return {name: self._with_all_experts(slot) for name, slot in found.items()}

    def _with_all_experts(self, slot: WeightSlot) -> WeightSlot:
        """Return a slot that loads this rank's experts of a tensor of all experts."""

        def load(tensor: torch.Tensor) -> None:
            slot.load(tensor[self._own_experts] if tensor.ndim else tensor)

        shape = slot.shape and (self._spec.experts, *slot.shape[1:])
        return replace(slot, shape=shape, load=load)

    @property
    def _own_experts(self) -> slice:
        own = self._own
        return slice(own.start, own.stop, own.step)

    def _expect_each(self, names: WeightNames, layer: str, weights: WeightMap) -> None:
        """Expect three tensors per expert, or stacked tensors of all experts."""
        found: list[str] = []
        for prefix, part in self._each.items():
            self.expect(weights, prefix, part)
            found += [f"{prefix}.{suffix}" for suffix in self.tensor_spec(prefix).suffixes]
        weights.add_alternatives(self._stacked_slots(names, layer), found)

    def _expect_all_or_each(self, names: WeightNames, layer: str, weights: WeightMap) -> None:
        """Expect two stacked tensors of all experts, or two tensors per expert."""
        each: dict[str, WeightSlot] = {}
        for prefix, part in self._each.items():
            facts = self.tensor_spec(prefix)
            each |= self.slots(prefix, ".", facts.suffixes, part)
            optional = self.slots(prefix, ".", getattr(facts, "optional_suffixes", ()), part)
            for name, slot in optional.items():
                weights.add_alternatives({name: slot}, ())
        stacked = self._stacked_slots(names, layer)
        for name, slot in stacked.items():
            weights.add_slot(name, slot)
        weights.add_alternatives(each, tuple(stacked))

    def _parts_of_each(self, names: WeightNames, layer: str) -> dict[str, WeightShard]:
        """Return this rank's part of every expert's matrices, those of other ranks included."""
        parts: dict[str, WeightShard] = {}
        interleaved = bool(names.expert_gate_up) and names.experts_layout == "interleaved"
        matrices = [(names.expert_gate, range(1)), (names.expert_up, range(1, 2))]
        if names.expert_gate_up or not self.gated:
            matrices = [(names.expert_gate_up or names.expert_up, range(1 + self.gated))]
        for index in range(self._spec.experts):
            own = self._own.index(index) if index in self._own else -1
            expert = f"{layer}.{names.expert.format(index)}"
            for name, halves in matrices:
                parts[f"{expert}.{name}"] = self._part(
                    "gate_up", halves, interleaved=interleaved, expert=own
                )
            parts[f"{expert}.{names.expert_down}"] = self._part("down", expert=own)
        return parts

    def _stacked_slots(self, names: WeightNames, layer: str) -> dict[str, WeightSlot]:
        """Return the slots of stacked tensors, in the checkpoint's layout."""
        count = len(self._own)
        interleaved = names.experts_layout in ("interleaved", "interleaved_rows")
        across = names.experts_layout in ("interleaved", "columns")
        halves = range(1 + self.gated)
        own = {
            f"{layer}.{names.experts_gate_up}": self._part(
                "gate_up", halves, interleaved=interleaved, num_experts=count, transposed=across
            ),
            f"{layer}.{names.experts_down}": self._part(
                "down", num_experts=count, transposed=across
            ),
        }
        self.parts |= own
        slots = {
            name: slot
            for prefix, part in own.items()
            for name, slot in self.slots(prefix, "", self.method.stacked_suffixes, part).items()
        }
        if names.experts_layout == "either":
            return {name: _of_either_layout(slot) for name, slot in slots.items()}
        return slots

    def _expect_stacked(self, names: WeightNames, layer: str, weights: WeightMap) -> None:
        """Expect gate, up and down of all experts in three tensors, stacked or apart."""
        flat = names.experts_layout == "stacked"
        count = len(self._own)
        total = self._spec.experts
        width = self._spec.width
        hidden = self._hidden
        own = {
            names.experts_gate_up: self._part("gate_up", range(1), num_experts=count),
            names.experts_up: self._part("gate_up", range(1, 2), num_experts=count),
            names.experts_down: self._part("down", num_experts=count, transposed=flat),
        }
        for name, part in own.items():
            self.parts[f"{layer}.{name}"] = part
            for whole, slot in self.slots(
                f"{layer}.{name}", "", self.method.stacked_suffixes, part
            ).items():
                if not flat:
                    weights.add(whole, slot.shape, slot.load, slot.after_load)
                    continue
                shape = (total * width, hidden) if slot.shape == (total, width, hidden) else None
                weights.add(whole, shape, partial(self._unstack, slot), slot.after_load)

    def _unstack(self, slot: WeightSlot, tensor: torch.Tensor) -> None:
        slot.load(tensor.view(self._spec.experts, -1, self._hidden))

    def _part(
        self,
        matrix: str,
        halves: range = range(1),
        *,
        interleaved: bool = False,
        expert: int = 0,
        num_experts: int = 0,
        transposed: bool = False,
    ) -> WeightShard:
        """Return this rank's part of a checkpoint tensor of one matrix.

        `halves` of gate_up are in the tensor: 0, 1 or both, with interleaved rows if `interleaved`.
        """
        whole = self._spec.width
        own = slice(0, whole) if self._spec.placement else self._group.own(whole)
        hidden = slice(0, self._hidden)
        pieces: tuple[tuple[slice, slice], ...] = ((hidden, hidden),)
        if matrix == "gate_up":
            pieces = tuple(
                (
                    slice(2 * own.start + at, 2 * own.stop, 2)
                    if interleaved
                    else slice(at * whole + own.start, at * whole + own.stop),
                    slice(half * self.width, (half + 1) * self.width),
                )
                for at, half in enumerate(halves)
            )
        return WeightShard(
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
        """Expect stacked biases of all experts, or one bias per tensor."""
        count = self._spec.experts
        name = f"{layer}.{names.experts_gate_up}"
        part = self.parts[name]
        bias = empty_parameter(len(self._own), part.target.stop, dtype=context.dtype)
        down_bias = empty_parameter(count, self._hidden, dtype=context.dtype)
        self.register_parameter("bias", bias)
        self.register_parameter("down_bias", down_bias)
        stacked = {
            f"{name}_bias": WeightSlot(
                (count, part.out_features),
                lambda tensor: copy_weight(bias.data, part.rows(tensor[self._own_experts], 1)),
            ),
            f"{layer}.{names.experts_down}_bias": WeightSlot(
                (count, self._hidden), partial(copy_weight, down_bias.data)
            ),
        }
        for name, slot in stacked.items():
            weights.add(name, slot.shape, slot.load)
        if names.expert:
            each = {
                f"{prefix}.bias": self._bias_slot(number, own)
                for number, pair in enumerate(self._each_expert())
                for prefix, own in pair
            }
            weights.add_alternatives(each, tuple(stacked))

    def _each_expert(self) -> list[list[tuple[str, WeightShard]]]:
        """Return (prefix, part) of the matrices of each expert of the model."""
        listed = list(self._each.items())
        size = len(listed) // self._spec.experts
        return [listed[at : at + size] for at in range(0, len(listed), size)]

    def _bias_slot(self, number: int, part: WeightShard) -> WeightSlot:
        """Return the slot of one expert's bias; that of `down` is added on every rank."""
        slot = WeightSlot((part.out_features,), partial(self._take_bias, number, part))
        return _unread(slot) if part.expert < 0 and part.matrix == "gate_up" else slot

    def _take_bias(self, number: int, part: WeightShard, tensor: torch.Tensor) -> None:
        is_inner = part.matrix == "gate_up"
        whole = self.get_parameter("bias" if is_inner else "down_bias").data
        copy_weight(whole[part.expert if is_inner else number, part.target], part.rows(tensor))


def _unread(slot: WeightSlot) -> WeightSlot:
    """Return the slot of a tensor of another rank."""
    return replace(slot, load=lambda tensor: None, after_load=None, reads=False)


def _of_either_layout(slot: WeightSlot) -> WeightSlot:
    """Return a slot of [experts, out, in] that also accepts [experts, in, out]."""
    if slot.shape is None or len(slot.shape) != 3:
        return slot
    count, rows, columns = slot.shape

    def load(tensor: torch.Tensor) -> None:
        slot.load(tensor if tuple(tensor.shape) == slot.shape else tensor.transpose(1, 2))

    return replace(slot, load=load, other_shape=(count, columns, rows))
