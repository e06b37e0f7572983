"""Images of Python callers: every form gives the same pixels, and anything else is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from builtin_plugins.features.multimodal.media.decode import as_rgb, decode_image
from builtin_plugins.features.multimodal.media.items import MediaItem
from builtin_plugins.features.multimodal.media.limits import WHITE, MediaLimits
from builtin_plugins.features.multimodal.pixels import raw_item
from core.api import InvalidRequest
from tests.builtin_plugins.features.multimodal.media.pictures import encoded

PIXELS = np.random.default_rng(0).integers(0, 255, (5, 7, 3)).astype(np.uint8)
IMAGE = Image.fromarray(PIXELS)


def rgb(value: Any) -> np.ndarray:
    """Return the pixels that the input processor gets for a value."""
    raw = raw_item("image", value, "a", None)
    if not raw.mode:
        return np.asarray(decode_image(raw.data, raw.field, MediaLimits()))
    return np.asarray(as_rgb(Image.frombytes(raw.mode, raw.size, raw.data), WHITE))


FORMS: dict[str, Any] = {
    "PIL image": IMAGE,
    "PIL image with alpha": IMAGE.convert("RGBA"),
    "array": PIXELS,
    "array with channels first": PIXELS.transpose(2, 0, 1),
    "array that is not contiguous": np.flip(np.flip(PIXELS, 1).copy(), 1),
    "array of floats": (PIXELS / 255).astype(np.float32),
    "array with alpha": np.concatenate([PIXELS, np.full((5, 7, 1), 255, np.uint8)], 2),
    "tensor": torch.from_numpy(PIXELS),
    "tensor with channels first": torch.from_numpy(PIXELS).permute(2, 0, 1),
    "tensor of floats": torch.from_numpy(PIXELS) / 255,
    "bytes": encoded(IMAGE),
    "bytearray": bytearray(encoded(IMAGE)),
    "item of a request": MediaItem("image", encoded(IMAGE), "messages[0].content[0]"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_pixels(form: str) -> None:
    assert np.array_equal(rgb(FORMS[form]), PIXELS)


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "CMYK", "I;16", "I"])
def test_every_mode_gives_the_pixels_of_its_file(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(PIXELS[:, :, 0].astype(np.uint16) * 256 + 77)
    elif mode == "I":
        image = Image.fromarray(PIXELS[:, :, 0].astype(np.int32) * 256)
    else:
        image = IMAGE.convert("L").convert(mode) if mode == "LA" else IMAGE.convert(mode)
    expected = np.asarray(as_rgb(image, WHITE))
    assert np.array_equal(rgb(image), expected)


def test_transparent_palette_shows_the_background() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    image.info["transparency"] = 0
    assert rgb(image).tolist() == [[[255, 255, 255], [40, 50, 60]]]


@pytest.mark.parametrize(
    "value",
    [
        5,
        "a.png",
        {"a": 1},
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((5, 4, 2), np.uint8),
        np.zeros((2, 4, 4, 3), np.uint8),
        np.zeros((4, 4, 3), np.int64),
        np.full((4, 4, 3), 2.0),
        np.full((4, 4, 3), np.nan),
        np.full((4, 4, 3), -0.1),
        np.zeros((4, 4, 3), np.complex64),
        np.array([["a"]]),
        [[1], [1, 2]],
    ],
    ids=str,
)
def test_other_values_are_refused_by_their_field(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected") as refused:
        raw_item("image", value, "multi_modal_data.image[0]", None)
    assert refused.value.field == "multi_modal_data.image[0]"
