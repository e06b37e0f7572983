"""The end of pooling: what a request gets of the numbers behind a model's last layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from core.api import PER_TOKEN, PoolingParams, PoolingSpec


def finish(numbers: torch.Tensor, spec: PoolingSpec, params: PoolingParams) -> torch.Tensor:
    """Return what a request gets of the numbers [m, size] behind all layers; [size] where it asked
    for one vector.
    """
    columns = params.returned_token_ids or spec.returned_token_ids
    if spec.task == "embed":
        size = params.dimensions or spec.dimensions
        numbers = numbers if size is None else numbers[:, :size]
    elif columns:
        numbers = numbers[:, list(columns)]
    if spec.mean or spec.sigma != 1.0:
        numbers = (numbers - spec.mean) / spec.sigma
    last = spec.last or default_last(spec, numbers.shape[-1])
    if params.use_activation is not None:
        last = (
            "none"
            if not params.use_activation
            else default_last(spec, numbers.shape[-1])
            if last == "none"
            else last
        )
    if last == "normalize":
        numbers = F.normalize(numbers, dim=-1)
    elif last != "none":
        numbers = numbers.softmax(-1) if last == "softmax" else numbers.sigmoid()
    return numbers if params.task in PER_TOKEN else numbers[0]


def default_last(spec: PoolingSpec, size: int) -> str:
    """Return what is done at the end where nobody says."""
    if spec.task == "embed":
        return "normalize"
    return "softmax" if size > 1 else "sigmoid"
