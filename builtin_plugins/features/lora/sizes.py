"""What adapters take of a rank's memory, at most."""

from __future__ import annotations

import torch
from core_kernels.low_rank import padded

from builtin_plugins.features.lora.places import Place, Places
from core.models.layers.embedding import Embedding, Head


def adapter_bytes(places: Places, rank: int, dtype: torch.dtype) -> int:
    """Return what an adapter of this rank on every layer but embedding and head takes."""
    by_expert = {
        id(place.module)
        for place in places.by_prefix.values()
        if place.part.matrix and not place.part.num_experts
    }
    return (
        sum(
            _numbers(place, rank)
            for place in places.by_prefix.values()
            # Experts have names one by one, and often one for all of them as well.
            if not isinstance(place.module, (Embedding, Head))
            and not (place.part.num_experts and id(place.module) in by_expert)
        )
        * dtype.itemsize
    )


def _numbers(place: Place, rank: int) -> int:
    columns = place.part.columns_in
    each: int = padded(columns.stop - columns.start) + padded(place.rows.stop - place.rows.start)
    return max(1, place.part.num_experts) * rank * each
