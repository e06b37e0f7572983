"""The weights of experts, and the forms in which checkpoints keep them. Knows no router and no product."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from core.nn.weights import WeightMap, empty_parameter, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec import MoeSpec
    from core.weight_names import WeightNames

FOUR_BIT: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the lower three bits of a four-bit float mean; the fourth is the sign."""
BLOCK: Final = 32
"""Numbers that share a scale."""


class Experts(nn.Module):
    """This rank's part of every expert's width: gate_up [experts, 2 * width, hidden], down [experts, hidden, width].

    Without gates the former is [experts, width, hidden].
    """

    def __init__(
        self, spec: MoeSpec, hidden: int, names: WeightNames, layer: str, context: BuildContext, weights: WeightMap
    ) -> None:
        super().__init__()
        self._group, self._spec = context.group, spec
        width = self._group.share(spec.width, "expert width")
        self.gate_up = empty_parameter(spec.experts, (1 + spec.gated) * width, hidden, dtype=context.dtype)
        self.down = empty_parameter(spec.experts, hidden, width, dtype=context.dtype)
        self.bias: nn.Parameter | None
        self.down_bias: nn.Parameter | None
        self.register_parameter("bias", None)
        self.register_parameter("down_bias", None)
        self._halves = self.gate_up.data.split(width, 1)  # type: ignore[no-untyped-call]
        if names.expert:
            self._expect_each(hidden, names, layer, weights)
        else:
            self._expect_together(hidden, names, layer, weights)
        if spec.bias:
            self._expect_biases(hidden, width, names, layer, context, weights)

    def _expect_each(self, hidden: int, names: WeightNames, layer: str, weights: WeightMap) -> None:
        """Expect three tensors of each expert, or all experts' in two."""
        wide, own = (self._spec.width, hidden), (names.expert_gate, names.expert_up)
        found: dict[str, list[str]] = {"up": [], "down": []}
        for index in range(self._spec.experts):
            expert = f"{layer}.{names.expert.format(index)}"
            for name, half in zip(own[-len(self._halves) :], self._halves, strict=True):
                found["up"].append(f"{expert}.{name}.weight")
                weights.add(found["up"][-1], wide, partial(self._cut, half[index], 0))
            found["down"].append(f"{expert}.{names.expert_down}.weight")
            weights.add(found["down"][-1], wide[::-1], partial(self._cut, self.down.data[index], 1))
        count, width = self._spec.experts, self._spec.width
        together = f"{layer}.{names.experts_gate_up}"
        shape = (count, len(self._halves) * width, hidden)
        weights.add_instead(together, shape, self._fill_gate_up, found["up"])
        together = f"{layer}.{names.experts_down}"
        weights.add_instead(together, (count, hidden, width), self._fill_down, found["down"])

    def _expect_together(self, hidden: int, names: WeightNames, layer: str, weights: WeightMap) -> None:
        """Expect all experts' weights in the tensors of the checkpoint's layout."""
        count, width = self._spec.experts, self._spec.width
        gate_up, down = f"{layer}.{names.experts_gate_up}", f"{layer}.{names.experts_down}"
        match names.experts_layout:
            case "rows":
                weights.add(gate_up, (count, 2 * width, hidden), self._fill_gate_up)
                weights.add(down, (count, hidden, width), self._fill_down)
            case "columns" | "interleaved" as layout:
                take = self._fill_gate_up if layout == "columns" else self._fill_turns
                weights.add(gate_up, (count, hidden, 2 * width), lambda tensor: take(tensor.transpose(1, 2)))
                weights.add(down, (count, width, hidden), lambda tensor: self._fill_down(tensor.transpose(1, 2)))
            case "mxfp4":
                _expect_packed(weights, gate_up, (count, 2 * width, hidden), self._fill_turns)
                _expect_packed(weights, down, (count, hidden, width), self._fill_down)
            case "stacked":
                shape, parts = (count * width, hidden), (count, width, hidden)
                for name, target in zip((gate_up, f"{layer}.{names.experts_up}"), self._halves, strict=True):
                    weights.add(name, shape, lambda tensor, to=target: self._cut(to, 1, tensor.view(parts)))  # type: ignore[misc]
                weights.add(down, shape, lambda tensor: self._fill_down(tensor.view(parts).transpose(1, 2)))

    def _expect_biases(
        self, hidden: int, width: int, names: WeightNames, layer: str, context: BuildContext, weights: WeightMap
    ) -> None:
        """Expect the biases beside the tensors of all experts; gate's and up's numbers are in turn."""
        count = self._spec.experts
        bias = empty_parameter(count, 2 * width, dtype=context.dtype)
        down_bias = empty_parameter(count, hidden, dtype=context.dtype)
        self.register_parameter("bias", bias)
        self.register_parameter("down_bias", down_bias)

        def take(tensor: torch.Tensor) -> None:
            self._cut(bias.data[:, :width], 1, tensor[:, 0::2])
            self._cut(bias.data[:, width:], 1, tensor[:, 1::2])

        weights.add(f"{layer}.{names.experts_gate_up}_bias", (count, 2 * self._spec.width), take)
        weights.add(f"{layer}.{names.experts_down}_bias", (count, hidden), partial(fill, down_bias.data))

    def _fill_gate_up(self, tensor: torch.Tensor) -> None:
        for target, half in zip(self._halves, tensor.chunk(len(self._halves), 1), strict=True):
            self._cut(target, 1, half)

    def _fill_turns(self, tensor: torch.Tensor, first: int = 0) -> None:
        """Take rows of gate and up in turn, of as many experts as the tensor has from the `first` on."""
        for target, start in zip(self._halves, (0, 1), strict=True):
            self._cut(target[first : first + len(tensor)], 1, tensor[:, start::2])

    def _fill_down(self, tensor: torch.Tensor, first: int = 0) -> None:
        self._cut(self.down.data[first : first + len(tensor)], 2, tensor)

    def _cut(self, target: torch.Tensor, axis: int, tensor: torch.Tensor) -> None:
        fill(target, self._group.cut(tensor, axis))


def _expect_packed(
    weights: WeightMap, name: str, shape: tuple[int, int, int], take: Callable[[torch.Tensor, int], None]
) -> None:
    """Expect the four-bit numbers and the scales of all experts.

    When both are there, `take` gets the weights one expert at a time, so that few are unpacked at once.
    """
    count, rows, columns = shape
    found: dict[str, torch.Tensor] = {}

    def keep(part: str, tensor: torch.Tensor) -> None:
        found[part] = tensor
        if len(found) == 2:
            blocks, scales = found.pop("blocks"), found.pop("scales")
            for index in range(count):
                take(unpack(blocks[index : index + 1], scales[index : index + 1]), index)

    packed = (count, rows, columns // BLOCK, BLOCK // 2)
    weights.add(f"{name}_blocks", packed, partial(keep, "blocks"))
    weights.add(f"{name}_scales", packed[:3], partial(keep, "scales"))


def unpack(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return [..., columns] bfloat16 of bytes [..., columns / 32, 16], two numbers each, and exponents of their scales.

    Lower four bits first; every number is exact in bfloat16.
    """
    values = torch.tensor([*FOUR_BIT, *(-value for value in FOUR_BIT)], dtype=torch.bfloat16, device=blocks.device)
    out = torch.empty(*blocks.shape[:-1], BLOCK, dtype=torch.bfloat16, device=blocks.device)
    out[..., 0::2] = values[(blocks & 15).int()]
    out[..., 1::2] = values[(blocks >> 4).int()]
    exponents = scales.int() - 127
    return torch.ldexp(out, exponents[..., None]).flatten(-2).to(torch.bfloat16)
