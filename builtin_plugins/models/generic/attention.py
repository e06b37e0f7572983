"""transformers' attention interface on the engine's paged cache.

transformers calls one function for every attention layer with query, key and value. Ours finds, on
the module that calls, the `PagedLayers` of its model, which know where the step's tokens go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.functional import pad
from transformers import AttentionInterface

from core.api import AttentionBackend, AttentionParams, LayerKV

PAGED: Final = "engine_paged"
"""Name of the implementation while a model serves.

No mask belongs to it, so transformers makes none.
"""
ATTRIBUTE: Final = "engine_layers"


@dataclass(slots=True)
class PagedLayer:
    """One call of attention in a forward pass; the i-th call is always of the same layer."""

    params: AttentionParams
    kv: LayerKV
    value_size: int
    """Numbers per head of a value; fewer than `params.head_size` where keys are longer."""
    cache: torch.Tensor | None = None


class PagedLayers:
    """The attention calls of one model, in their order."""

    def __init__(self, backend: AttentionBackend, layers: Sequence[PagedLayer]) -> None:
        self.layers = layers
        self._backend = backend
        self._plans: Sequence[Any] = ()
        self._next = 0

    def begin(self, plans: Sequence[Any]) -> None:
        """Start a forward pass; `plans` are the attention backend's, one per call."""
        self._plans = plans
        self._next = 0

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return [1, num_tokens, heads, value_size]; the arguments are [1, heads, num_tokens,
        size].
        """
        layer = self.layers[self._next]
        plan = self._plans[self._next]
        self._next += 1
        assert layer.cache is not None, "bind_kv was not called"
        size = layer.params.head_size
        dtype = layer.cache.dtype
        query = _flat(query, size, dtype)
        key = _flat(key, size, dtype)
        out = self._backend.attend(
            layer.params, query, key, _flat(value, size, dtype), layer.cache, plan
        )
        return (
            out[None, ..., : layer.value_size].to(value.dtype).contiguous()
        )  # modules take views of it


def _flat(part: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return [num_tokens, heads, size] of [1, heads, num_tokens, size or less]; zeros change no
    product.
    """
    flat = part[0].transpose(0, 1).to(dtype)
    return flat if flat.shape[-1] == size else pad(flat, (0, size - flat.shape[-1]))


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as the trial has found it (`trial`): what a layer says of its scale and window is
    fixed by then.
    """
    layers: PagedLayers = getattr(module, ATTRIBUTE)
    return layers.attend(query, key, value), None


def register() -> None:
    """Make the implementation known to transformers. Safe to call again."""
    AttentionInterface.register(PAGED, paged_attention)
