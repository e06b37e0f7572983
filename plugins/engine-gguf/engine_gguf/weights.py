"""Which tensors of a GGUF file become which weights, and which of those stay blocks. Knows names and shapes, reads no data.

A weight stays in its blocks where a kernel multiplies by them and the parts that a layer fuses with it do so, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.api import ModelError
from engine_gguf.header import Header, Stored, shown
from engine_gguf.kinds import KEPT
from engine_gguf.names import Names, Place

_FUSED: Final = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"), ("ffn_gate_shexp", "ffn_up_shexp"))
"""Parts that layers compute in one."""
_EXPERTS: Final = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_MADE_PLAIN: Final = ("ffn_gate_inp", "ffn_gate_inp_shexp", "attn_k_b", "attn_v_b")
"""Routers, and what is put together of several tensors."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is made of one tensor."""

    stored: Stored
    place: Place
    blocks: bool
    """It stays in its blocks."""


def plan_weights(headers: Iterable[Header], config: Mapping[str, Any]) -> list[list[Plan]]:
    """Return for each file what its tensors become, in the order of their data. Raises `ModelError` for one without a name."""
    headers = list(headers)
    kinds = {tensor.name: tensor.kind.name for header in headers for tensor in header.tensors}
    names = Names(config)
    plans: list[list[Plan]] = []
    for header in headers:
        own: list[Plan] = []
        for tensor in header.tensors:
            if names.ignores(tensor.name):
                continue
            place = names.place(tensor.name)
            if place is None:
                raise ModelError(
                    f"{header.path} has the tensor {shown(tensor.name)}, which {config['architectures'][0]} has no place for. "
                    "Take a file of a model that is served, or describe this one with --hf-config-path."
                )
            blocks = tensor.name.endswith(".weight") and len(tensor.shape) > 1
            own.append(Plan(tensor, place, blocks and _stays(tensor.name, kinds, config)))
        plans.append(own)
    return plans


def kept_blocks(plans: Iterable[Iterable[Plan]]) -> dict[str, str]:
    """Return the types of weights that stay in blocks, by the names of weights without their suffix."""
    return {
        plan.place.name.removesuffix(".weight"): plan.stored.kind.name for own in plans for plan in own if plan.blocks
    }


def _stays(name: str, kinds: Mapping[str, str], config: Mapping[str, Any]) -> bool:
    """Say whether the kernels multiply by a tensor's blocks, and by those of all that is fused with it."""
    layer, _, part = name.removesuffix(".weight").rpartition(".")
    if part in _MADE_PLAIN or (part in _EXPERTS and config["architectures"][0] == "GptOssForCausalLM"):
        return False
    together = next((parts for parts in (*_FUSED, _EXPERTS) if part in parts), (part,))
    dot = f"{layer}." if layer else ""
    return all(kinds.get(f"{dot}{each}.weight", "Q8_0") in KEPT for each in together)
