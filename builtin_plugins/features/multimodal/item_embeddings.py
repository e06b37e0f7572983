"""Embeddings of items that a client has computed (`--enable-mm-embeds`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from builtin_plugins.features.multimodal.client_tensors import (
    FLOATS,
    ClientTensor,
    is_array,
    read_tensors,
)
from builtin_plugins.features.multimodal.messages import EMBEDDINGS_MODE, RawItem
from core.api import InvalidRequest

GRID: Final = "image_grid_thw"
"""Name of Qwen-VL's sizes of images in patches: time, height, width."""
_PIXEL_AXIS: Final = (1, 3, 4)


def key_of(modality: str) -> str:
    """Return the name of a modality's embeddings, as in vLLM."""
    return f"{modality}_embeds"


def has_embeddings(value: Any, width: int) -> bool:
    """Return whether a caller's item is embeddings and not pixels."""
    if isinstance(value, Mapping):
        return True
    is_floating = is_array(value) and "float" in str(value.dtype)
    if not is_floating or len(value.shape) not in (2, 3) or value.shape[-1] in _PIXEL_AXIS:
        return False
    return bool(value.shape[-1] == width)


def embedded_items(
    modality: str, value: Any, field: str, uuid: str | None, width: int, max_bytes: int
) -> list[RawItem]:
    """Return the items of a value with embeddings. Raises `InvalidRequest` for `field`."""
    key = key_of(modality)
    tensors = read_tensors(value, key, field, max_bytes)
    unknown = sorted(tensors.keys() - {key, GRID})
    embeddings = tensors.get(key)
    if unknown or embeddings is None:
        raise InvalidRequest(
            field,
            f"got tensors {', '.join(sorted(tensors))!r:.80}; expected {key} and, for Qwen-VL, "
            f"{GRID}. Correct their names.",
        )
    shape = list(embeddings.shape)
    if embeddings.dtype not in FLOATS or len(shape) not in (2, 3) or shape[-1] != width:
        raise InvalidRequest(
            field,
            f"got {key} of {embeddings.dtype} and shape {shape}; expected floats of shape "
            f"[tokens, {width}] or [items, tokens, {width}]. Correct them.",
        )
    grids = _grids(tensors.get(GRID), field)
    parts = _split(embeddings, grids, field)
    if uuid is not None and len(parts) != 1:
        raise InvalidRequest(field, f"got one uuid for {len(parts)} items; expected one item.")
    found = []
    for index, part in enumerate(parts):
        own = {key: part}
        if grids:
            own[GRID] = grids[index]
        data = msgspec.msgpack.encode(own)
        found.append(RawItem(modality, field, data, EMBEDDINGS_MODE, uuid=uuid))
    return found


def _grids(tensor: ClientTensor | None, field: str) -> list[ClientTensor]:
    """Return the grid of each item."""
    if tensor is None:
        return []
    if tensor.dtype != "int64" or tensor.shape[-1] != 3 or len(tensor.shape) > 2:
        raise InvalidRequest(
            f"{field}.{GRID}",
            f"got {tensor.dtype} of shape {list(tensor.shape)}; expected int64 of shape "
            "[items, 3]. Correct it.",
        )
    flat = tensor.flat()
    return [flat.rows(index, index + 1) for index in range(flat.shape[0])]


def _split(embeddings: ClientTensor, grids: list[ClientTensor], field: str) -> list[ClientTensor]:
    """Return the embeddings of each item [tokens, width]."""
    if len(embeddings.shape) == 3 and len(grids) in (0, embeddings.shape[0]):
        count = embeddings.shape[0]
        return [embeddings.rows(index, index + 1).flat() for index in range(count)]
    flat = embeddings.flat()
    if len(grids) <= 1:
        return [flat]
    patches = [_num_patches(grid) for grid in grids]
    total = sum(patches)
    per_token = max(1, total // flat.shape[0])
    counts = [count // per_token for count in patches]
    if total % flat.shape[0] or sum(counts) != flat.shape[0] or 0 in counts:
        raise InvalidRequest(
            f"{field}.{GRID}",
            f"got {total} patches for {flat.shape[0]} embeddings; expected a multiple of them. "
            "Correct it.",
        )
    parts = []
    start = 0
    for count in counts:
        parts.append(flat.rows(start, start + count))
        start += count
    return parts


def _num_patches(grid: ClientTensor) -> int:
    sizes = [int.from_bytes(grid.data[i : i + 8], "little", signed=True) for i in (0, 8, 16)]
    return math.prod(sizes) if min(sizes) > 0 else 0
