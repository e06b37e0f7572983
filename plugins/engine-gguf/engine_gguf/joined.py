"""Puts together what GGUF files keep in several tensors and models want in one, and takes apart the reverse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from core.api import ModelError
from engine_gguf.weights import Plan

Weights = Iterator[tuple[str, torch.Tensor]]


class Joined:
    """Takes tensors in any order; keeps those whose others have not come."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._waiting: dict[tuple[str, str], dict[str, torch.Tensor]] = {}

    def add(self, plan: Plan, tensor: torch.Tensor) -> Weights:
        """Yield the weights that this tensor is, or completes."""
        name = plan.place.name
        layer, _, part = plan.stored.name.rpartition(".")[0].rpartition(".")
        if part in ("attn_k_b", "attn_v_b"):
            yield from self._latent(layer, name, part, tensor)
        elif "{}" in name and self._config["architectures"][0] == "GptOssForCausalLM":
            yield from self._in_turn(layer, name, part, tensor)
        elif "{}" in name:
            if tensor.dim() < 3:
                raise ModelError(f"{plan.stored.name} is not the weights of several experts. Take another file.")
            for expert, own in enumerate(tensor):
                yield name.format(expert), own
        else:
            yield name, tensor

    def _complete(self, layer: str, what: str, part: str, tensor: torch.Tensor, count: int) -> dict[str, torch.Tensor]:
        """Return the tensors of a weight once there are so many, and nothing before."""
        found = self._waiting.setdefault((layer, what), {})
        found[part] = tensor
        return self._waiting.pop((layer, what)) if len(found) == count else {}

    def _latent(self, layer: str, name: str, part: str, tensor: torch.Tensor) -> Weights:
        """Yield the product behind the latents: of each head its keys', which are stored [latent, key], then its values'."""
        found = self._complete(layer, "latent", part, tensor, 2)
        if found:
            keys, values = found["attn_k_b"].transpose(1, 2), found["attn_v_b"]
            both = torch.cat((keys.to(values.dtype), values), 1)
            yield name, both.reshape(-1, both.shape[-1])

    def _in_turn(self, layer: str, name: str, part: str, tensor: torch.Tensor) -> Weights:
        """Yield the experts of gpt-oss in one tensor each: rows of gate and up in turn, [experts, in, out]."""
        prefix, _, leaf = name.partition(".{}.")
        ending = "_bias" if leaf.endswith(".bias") else ""
        if part == "ffn_down_exps":
            yield f"{prefix}.down_proj{ending}", tensor if ending else tensor.transpose(1, 2)
            return
        found = self._complete(layer, f"gate_up{ending}", part, tensor, 2)
        if found:
            gate, up = found["ffn_gate_exps"], found["ffn_up_exps"]
            both = torch.stack((gate, up), 2).flatten(1, 2)
            yield f"{prefix}.gate_up_proj{ending}", both if ending else both.transpose(1, 2)
