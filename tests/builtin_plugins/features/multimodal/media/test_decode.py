"""Hostile files are refused cheaply; orientation, palettes, alpha and depth have rules."""

from __future__ import annotations

import contextlib
import io
import re
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from builtin_plugins.features.multimodal.media.checks import MAX_JPEG_SCANS, check_image
from builtin_plugins.features.multimodal.media.decode import decode_image
from builtin_plugins.features.multimodal.media.formats import FORMATS, image_format, image_size
from builtin_plugins.features.multimodal.media.limits import MediaLimits
from core.api import InvalidRequest
from tests.builtin_plugins.features.multimodal.media.pictures import (
    encoded,
    hostile_files,
    jpeg_of_many_scans,
    picture,
)

LIMITS = MediaLimits()
FIELD = "messages[3].content[1].image_url"
HOSTILE = hostile_files()
MIB = 2**20


def pixels(data: bytes, limits: MediaLimits = LIMITS) -> np.ndarray:
    image = decode_image(data, FIELD, limits)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_by_its_field_within_bounds(name: str) -> None:
    data = HOSTILE[name]
    tracemalloc.start()
    begun = time.process_time()
    try:
        with pytest.raises(InvalidRequest) as refused:
            decode_image(data, FIELD, LIMITS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.field == FIELD
    assert "expected" in str(refused.value)
    assert not re.search(r"0x[0-9a-f]{6}|object at|BytesIO|Traceback", str(refused.value))
    assert peak < len(data) + 100 * MIB
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("name", [name for name in HOSTILE if name.startswith("JPEG of")])
def test_header_is_searched_in_little_time(name: str) -> None:
    data = HOSTILE[name]
    begun = time.process_time()
    for _ in range(10):
        image_size(data)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (3, 200), (64, 48)])
def test_header_gives_format_and_size_of_each_accepted_format(
    name: str, size: tuple[int, int]
) -> None:
    data = picture(size, format=name)
    assert image_format(data) == name
    assert image_size(data) == size
    assert check_image(data, FIELD, LIMITS) == size[0] * size[1]
    assert pixels(data).shape == (size[1], size[0], 3)


@pytest.mark.parametrize("lossless", [False, True])
def test_header_gives_size_of_each_kind_of_webp(lossless: bool) -> None:
    frames = [Image.new("RGBA", (21, 13), (9, 9, 9, alpha)) for alpha in (255, 100)]
    animated = encoded(frames[0], format="WEBP", save_all=True, append_images=frames[1:])
    for data in (picture((21, 13), format="WEBP", lossless=lossless), animated):
        assert image_size(data) == (21, 13)
        assert pixels(data).shape == (13, 21, 3)


def test_progressive_photo_and_photo_with_metadata_are_decoded() -> None:
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8))
    exif = photo.getexif()
    exif[0x010F] = "camera" * 1000
    data = encoded(photo, format="JPEG", progressive=True, exif=exif, icc_profile=b"\0" * 3000)
    assert pixels(data).shape == (40, 50, 3)
    assert jpeg_of_many_scans(1).count(b"\xff\xda") < MAX_JPEG_SCANS / 5


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP"])
def test_orientation_makes_image_upright_as_in_transformers(name: str, orientation: int) -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (6, 9, 3), np.uint8))
    exif = image.getexif()
    exif[0x0112] = orientation
    data = encoded(image, format=name, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert np.array_equal(pixels(data), np.asarray(upright))


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_unknown_orientation_leaves_the_image_as_it_is(orientation: int) -> None:
    image = Image.new("RGB", (9, 6))
    exif = image.getexif()
    exif[0x0112] = orientation
    assert pixels(encoded(image, exif=exif)).shape == (6, 9, 3)


def test_damaged_exif_leaves_the_image_as_it_is() -> None:
    data = encoded(Image.new("RGB", (9, 6)), format="JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert pixels(data).shape == (6, 9, 3)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize("background", [(255, 255, 255), (0, 10, 20)])
def test_transparent_pixels_show_the_background(
    mode: str, background: tuple[int, int, int]
) -> None:
    image = Image.new("RGBA", (4, 2), (200, 200, 200, 255))
    image.putpixel((1, 1), (9, 9, 9, 0))
    if mode == "P":
        image = image.convert("RGB").quantize(4)
        image.info["transparency"] = image.getpixel((1, 1))
    found = pixels(encoded(image.convert(mode)), MediaLimits(background=background))
    assert tuple(found[1, 1]) == background
    assert tuple(found[0, 0]) == (200, 200, 200)


def test_half_transparent_pixels_are_blended() -> None:
    found = pixels(picture((2, 2), "RGBA", (0, 0, 0, 128)))
    assert abs(int(found[0, 0, 0]) - 127) <= 1


def test_16_bit_grey_keeps_its_high_byte() -> None:
    values = np.array([[0, 255, 256], [0x1234, 0x8000, 0xFFFF]], np.uint16)
    found = pixels(encoded(Image.fromarray(values)))
    assert np.array_equal(found[:, :, 0], values >> 8)
    assert np.array_equal(found[:, :, 0], found[:, :, 2])


def test_cmyk_grey_and_bilevel_become_rgb() -> None:
    assert np.allclose(pixels(picture(mode="CMYK", format="JPEG"))[0, 0], (250, 10, 20), atol=12)
    assert tuple(pixels(picture(mode="L"))[0, 0]) == (200, 200, 200)
    assert tuple(pixels(picture(mode="1", colour=1))[0, 0]) == (255, 255, 255)


def test_first_frame_of_an_animation_is_decoded() -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "blue")]
    for name in ("GIF", "PNG"):
        data = encoded(frames[0], format=name, save_all=True, append_images=frames[1:])
        assert tuple(pixels(data)[0, 0]) == (255, 0, 0)


def test_data_after_the_image_is_not_read() -> None:
    good = picture()
    assert np.array_equal(pixels(good + b"PK\3\4<script>" + b"\0" * 1000), pixels(good))


def test_bounds_are_inclusive() -> None:
    data = picture((10, 10))
    assert pixels(data, MediaLimits(len(data), 100)).shape == (10, 10, 3)
    for limits in (MediaLimits(len(data) - 1, 100), MediaLimits(len(data), 99)):
        with pytest.raises(InvalidRequest, match="expected at most"):
            decode_image(data, FIELD, limits)


@given(st.sampled_from([picture((20, 10), format=name) for name in FORMATS]), st.data())
def test_damaged_file_is_decoded_or_refused(good: bytes, drawn: st.DataObject) -> None:
    damaged = bytearray(good)
    for _ in range(drawn.draw(st.integers(1, 8))):
        damaged[drawn.draw(st.integers(0, len(good) - 1))] = drawn.draw(st.integers(0, 255))
    cut = drawn.draw(st.integers(0, len(good)))
    with contextlib.suppress(InvalidRequest):
        image = decode_image(bytes(damaged[:cut]), FIELD, MediaLimits(max_pixels=100_000))
        assert image.mode == "RGB"
