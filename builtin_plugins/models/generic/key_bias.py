"""Doge's bias of each key, computed from its value, as one more element of queries and keys."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

BIASED: Final = "prepare_dynamic_mask"
"""Method of attention modules that adds the bias to a mask."""
MASK: Final = "engine_mask"
SIZE: Final = 8
"""Elements added to a head: the bias, and zeros that keep its size even."""


def install(model: torch.nn.Module) -> None:
    """Let attention modules pass the bias instead of a mask."""
    for module in model.modules():
        if hasattr(module, BIASED):
            setattr(module, BIASED, partial(_bias, module))


def _bias(
    module: torch.nn.Module,
    hidden_states: torch.Tensor,
    dt_states: torch.Tensor,
    keep_window_size: int,
    attention_mask: object,
) -> torch.Tensor:
    """Return the bias of each key, [1, kv_heads, num_tokens, 1].

    No key is masked: the context is limited to `keep_window_size`.
    """
    del hidden_states, keep_window_size
    setattr(module, MASK, attention_mask)
    return dt_states[..., None]


def with_bias(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    mask: object,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, object]:
    """Return query, key and mask, with the bias as part of the scores.

    Without a bias they are unchanged.
    """
    if not isinstance(mask, torch.Tensor) or not hasattr(module, MASK):
        return query, key, mask
    assert scale is not None, "Doge's attention states its scale"
    bias = mask[:, :: query.shape[1] // key.shape[1]]
    zeros = (*key.shape[:3], SIZE - 1)
    key = torch.cat((key, bias.to(key.dtype), key.new_zeros(zeros)), -1)
    ones = query.new_full((*query.shape[:3], SIZE), 1 / scale)
    return torch.cat((query, ones), -1), key, getattr(module, MASK)
