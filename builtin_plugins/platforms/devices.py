"""NVIDIA GPUs that processes of this machine may use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

GPUS: Final = Path("/proc/driver/nvidia/gpus")
VISIBLE_GPUS: Final = "CUDA_VISIBLE_DEVICES"
"""Environment variable with the GPUs of a process, as numbers or UUIDs."""
ALLOW_EQUAL_NUMBERS: Final = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
"""Environment variable by which torch shares memory of ranks that each see one GPU, number 0."""


def visible_gpus(environment: Mapping[str, str] = os.environ, gpus: Path = GPUS) -> Sequence[str]:
    """Return the GPUs that this process may use, as `VISIBLE_GPUS` names them.

    The device stays uninitialised.
    """
    named = environment.get(VISIBLE_GPUS)
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip()]
    try:
        return [str(index) for index in range(len(list(gpus.iterdir())))]
    except OSError:
        return []
