"""Names and shapes of the tensors of a repository on the hub, without its weights: a few kilobytes
are fetched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from core.api import EngineConfig, ModelError

if TYPE_CHECKING:
    import torch


def hub_headers(name: str, config: EngineConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor without memory). Raises `ModelError` when the headers cannot be had."""
    import torch  # lazy: slow to import
    from huggingface_hub import get_safetensors_metadata  # lazy: slow to import

    dtypes = {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E8M0": torch.float8_e8m0fnu,
    }
    try:
        metadata = get_safetensors_metadata(
            name, revision=config.model.revision, token=config.model.hf_token
        )
    except Exception as error:
        raise ModelError(
            f"the headers of {name}'s weights cannot be fetched from the hub: {error}. Try again, "
            "or give a folder."
        ) from error
    for file in metadata.files_metadata.values():
        for tensor, facts in file.tensors.items():
            start, end = facts.data_offsets
            count = math.prod(facts.shape)
            whole = {1: torch.int8, 2: torch.int16, 4: torch.int32}.get(
                (end - start) // max(count, 1), torch.int64
            )
            yield (
                tensor,
                torch.empty(facts.shape, dtype=dtypes.get(facts.dtype, whole), device="meta"),
            )
