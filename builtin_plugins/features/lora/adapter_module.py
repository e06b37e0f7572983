"""The tensors of one adapter module, with its rank and scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from builtin_plugins.features.lora.adapter_file import BadAdapter
from builtin_plugins.features.lora.peft import PeftConfig

Tensor = torch.Tensor


class AdapterModule:
    """The tensors of one adapter module, with its rank and scale."""

    def __init__(
        self, module: str, roles: Mapping[str, tuple[str, Tensor]], config: PeftConfig
    ) -> None:
        self.roles = roles
        self.rank = config.rank_of(module)
        self.scale = config.scale_of(module)
        self._base = config.base_model

    @property
    def has_factors(self) -> bool:
        """Whether at least one factor is there."""
        return "A" in self.roles or "B" in self.roles

    def name(self, role: str) -> str:
        """Return the name of a tensor in the file."""
        return repr(self.roles[role][0])[:200]

    def tensor(self, role: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor, which must have this shape."""
        name, tensor = self.roles[role]
        if tuple(tensor.shape) != shape:
            trained = f" ({self._base!r:.100})" if self._base else ""
            raise BadAdapter(
                f"{name!r:.200}: got shape {list(tensor.shape)}; expected {list(shape)}. The "
                f"adapter was trained on another model{trained}, or its config states another "
                "rank."
            )
        return tensor

    def factors(
        self, inputs: tuple[int, ...], outputs: tuple[int, ...], max_rank: int, kind: str = ""
    ) -> tuple[Tensor, Tensor]:
        """Return A [rank, inputs] and B [outputs, rank]."""
        self.check(max_rank, kind)
        return self.tensor(f"{kind}A", (self.rank, *inputs)), self.tensor(
            f"{kind}B", (*outputs, self.rank)
        )

    def check(self, max_rank: int, kind: str = "") -> None:
        """Raise `BadAdapter` if one factor is missing or the rank is too large."""
        for one, other in (("A", "B"), ("B", "A")):
            if kind + one not in self.roles:
                raise BadAdapter(
                    f"{self.name(kind + other)}: its lora_{one} is missing. Save the adapter again."
                )
        if self.rank > max_rank:
            raise BadAdapter(f"LoRA rank {self.rank} is greater than max_lora_rank {max_rank}.")


def fits_experts(own: AdapterModule, part: Any) -> bool:
    """Return whether an adapter's factors have the sizes of an expert matrix, or swapped ones."""
    if "A" not in own.roles or "B" not in own.roles:
        return False
    sizes = own.roles["A"][1].shape[-1], own.roles["B"][1].shape[-2]
    expected = part.in_features, part.out_features
    return sizes in (expected, expected[::-1])


def stacked_factors(own: AdapterModule, part: Any, max_rank: int) -> tuple[Tensor, Tensor]:
    """Return A [experts, rank, inputs] and B [experts, outputs, rank].

    PEFT stores [experts * rank, inputs] and [outputs, rank * experts], and swaps the sides of a
    parameter that it takes for transposed.
    """
    own.check(max_rank)
    a = own.roles["A"][1]
    b = own.roles["B"][1]
    count = part.num_experts
    rank = own.rank
    inputs = part.in_features
    outputs = part.out_features
    if a.ndim == b.ndim == 2 and a.shape[0] == b.shape[1] == count * rank:
        a = a.view(count, rank, -1)
        b = b.view(len(b), rank, count).permute(2, 0, 1)
        if (a.shape[2], b.shape[1]) == (outputs, inputs) and inputs != outputs:
            swapped = b.transpose(1, 2)
            b = a.transpose(1, 2)
            a = swapped
    if tuple(a.shape) != (count, rank, inputs) or tuple(b.shape) != (count, outputs, rank):
        own.tensor("A", (count, rank, inputs))
        own.tensor("B", (count, outputs, rank))
    return a, b
