"""transformers' attention interface on the engine's paged cache.

transformers calls one function for every attention layer with query, key and value. Ours gets the
model's `PagedLayers` from an attribute of the calling module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.functional import pad
from transformers import AttentionInterface

from builtin_plugins.models.generic.key_bias import with_bias
from core.api.models import AttentionBackend
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import LayerKV

PAGED: Final = "engine_paged"
"""Name of the attention implementation. It has no mask function, so transformers makes no mask."""
ATTRIBUTE: Final = "engine_layers"


@dataclass(slots=True)
class PagedLayer:
    """One attention call of a forward pass; call i always belongs to the same layer."""

    params: AttentionParams
    kv: LayerKV
    value_size: int
    """Head size of values; smaller than `params.head_size` if keys are larger."""
    cache: torch.Tensor | None = None


class PagedLayers:
    """The attention calls of one model, in order."""

    def __init__(self, backend: AttentionBackend, layers: Sequence[PagedLayer]) -> None:
        self.layers = layers
        self._backend = backend
        self._plans: Sequence[Any] = ()
        self._next = 0

    def begin(self, plans: Sequence[Any]) -> None:
        """Start a forward pass with the attention backend's plans, one per call."""
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
        # contiguous, because modules call `view`
        return out[None, ..., : layer.value_size].to(value.dtype).contiguous()


def _flat(part: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return [num_tokens, heads, size] from [1, heads, num_tokens, up to size], padded with zeros.

    The zeros do not change any product.
    """
    flat = part[0].transpose(0, 1).to(dtype)
    return flat if flat.shape[-1] == size else pad(flat, (0, size - flat.shape[-1]))


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend with the parameters that the trial (`trial`) found."""
    query, key, _mask = with_bias(module, query, key, attention_mask, scaling)
    layers: PagedLayers = getattr(module, ATTRIBUTE)
    return layers.attend(query, key, value), None


def register() -> None:
    """Register the implementation in transformers. Idempotent."""
    AttentionInterface.register(PAGED, paged_attention)
