"""Items of Python callers as plain data: PIL images, arrays and tensors by their pixels."""

from __future__ import annotations

from typing import Any

from builtin_plugins.features.multimodal.media.items import MediaItem
from builtin_plugins.features.multimodal.messages import RawItem
from core.api import InvalidRequest

_MODES = ("RGB", "RGBA", "L", "LA", "I;16", "I")
"""Modes of Pillow that are sent as they are; the process turns them into RGB."""


def raw_item(modality: str, value: Any, field: str, uuid: str | None) -> RawItem:
    """Return an item of a request. Raises `InvalidRequest` for `field`."""
    if isinstance(value, MediaItem):
        return RawItem(modality, value.field, value.data, uuid=value.uuid or uuid)
    if value is None:
        if uuid is None:
            raise InvalidRequest(field, "got no content and no uuid; expected one. Add one.")
        return RawItem(modality, field, b"", uuid=uuid)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return RawItem(modality, field, bytes(value), uuid=uuid)
    if hasattr(value, "tobytes") and hasattr(value, "convert"):
        image = value
        if value.mode not in _MODES:
            image = value.convert("RGBA" if value.has_transparency_data else "RGB")
        return RawItem(modality, field, image.tobytes(), image.mode, image.size, uuid)
    return _from_array(modality, value, field, uuid)


def _from_array(modality: str, value: Any, field: str, uuid: str | None) -> RawItem:
    import numpy as np  # lazy: heavy dependency

    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(field, f"got {type(value).__name__}; {_EXPECTED}") from error
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        array = array.transpose(1, 2, 0)  # channels first, as tensors have them
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    modes = {2: "L", 3: {3: "RGB", 4: "RGBA"}.get(array.shape[-1], "") if array.ndim == 3 else ""}
    mode = modes.get(array.ndim, "")
    if not mode or 0 in array.shape:
        shape = list(array.shape)
        raise InvalidRequest(field, f"got {array.dtype} of shape {shape}; {_EXPECTED}")
    if array.dtype.kind == "f":
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise InvalidRequest(field, f"got numbers outside of 0 to 1; {_EXPECTED}")
        array = (array * 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise InvalidRequest(field, f"got dtype {array.dtype}; {_EXPECTED}")
    height, width = array.shape[:2]
    return RawItem(modality, field, array.tobytes(), mode, (width, height), uuid)


_EXPECTED = (
    "expected a PIL image, encoded bytes, or pixels [height, width, 3] of uint8, or of floats "
    "from 0 to 1."
)
