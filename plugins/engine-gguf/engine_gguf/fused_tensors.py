"""Fuses tensors that GGUF files split and checkpoints fuse, and unstacks experts."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Final

import torch

from core.api import ModelError
from engine_gguf.config_source import count
from engine_gguf.weights import EXPERTS, GATE_UP, WeightPlan

Weights = Iterator[tuple[str, torch.Tensor]]
_ACROSS: Final = ("Llama4ForCausalLM", "GptOssForCausalLM")
"""Architectures with expert weights [experts, in, out] in checkpoints."""
_IN_TURN: Final = ("GptOssForCausalLM",)
"""Architectures with interleaved gate and up rows in checkpoints."""


class TensorFuser:
    """Takes tensors in any order; holds those of incomplete pairs."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._architecture = config["architectures"][0]
        self._waiting: dict[str, dict[str, torch.Tensor]] = {}

    def add(self, plan: WeightPlan, tensor: torch.Tensor) -> Weights:
        """Yield the weights that this tensor is, or completes."""
        name = plan.target.name
        if "{}" in name:
            if tensor.dim() < 3:
                raise ModelError(
                    f"{plan.stored.name}: expected the stacked weights of experts. Use another "
                    "file."
                )
            for expert, own in enumerate(tensor):
                yield name.format(expert), own
            return
        if plan.pair:
            found = self._waiting.setdefault(name, {})
            found[plan.part] = tensor
            if len(found) < len(plan.pair):
                return
            del self._waiting[name]
            # Its pages are released before the result is read
            tensor = self._one(plan, *(found.pop(part) for part in plan.pair))
        if (
            plan.part in EXPERTS
            and not plan.blocks
            and self._architecture in _ACROSS
            and tensor.dim() > 2
        ):
            tensor = tensor.transpose(1, 2)
        yield name, tensor

    def _one(self, plan: WeightPlan, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return two tensors as the checkpoint's one."""
        # Per head: keys, stored as [latent, key], then values.
        if plan.part in (
            "attn_k_b",
            "attn_v_b",
        ):
            both = torch.cat((first.transpose(1, 2).to(second.dtype), second), 1)
            return both.reshape(-1, both.shape[-1])
        if plan.part in GATE_UP and not plan.blocks and self._architecture in _IN_TURN:
            return torch.stack((first, second), 2).flatten(1, 2)
        if plan.part in GATE_UP:
            return _concat_rows(first, second)
        if plan.part in ("attn_qkv", "attn_gate"):
            return self._by_key_head(first, second)
        return torch.cat((first, second))

    def _by_key_head(self, first: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """Return rows of queries, keys, values and gates grouped by key head."""
        config = self._config
        keys = count(config, "linear_num_key_heads")
        size = count(config, "linear_key_head_dim")
        wide = len(gates)
        if not keys or wide % keys or len(first) != 2 * keys * size + wide:
            raise ModelError(
                f"got {len(first)} and {wide} rows; expected rows of {keys} key heads. Use another "
                "file."
            )
        parts = (*torch.split(first, [keys * size, keys * size, wide]), gates)
        return torch.cat([part.reshape(keys, -1, *part.shape[1:]) for part in parts], 1).flatten(
            0, 1
        )


def _concat_rows(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return both along the second axis, in mmap memory, which is released at once."""
    shape = (first.shape[0], first.shape[1] + second.shape[1], *first.shape[2:])
    if first.is_meta or not prod(shape):
        return torch.cat((first, second), 1)
    held = mmap.mmap(-1, prod(shape) * first.element_size())
    return torch.cat((first, second), 1, out=torch.frombuffer(held, dtype=first.dtype).view(shape))
