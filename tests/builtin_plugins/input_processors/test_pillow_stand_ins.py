"""Image processors with Pillow cut images as transformers' own with torchvision."""

from __future__ import annotations

from typing import Any, Final

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

import numpy as np
from PIL import Image

from builtin_plugins.input_processors.transformers.cohere import Cohere2VisionImageProcessorPil
from builtin_plugins.input_processors.transformers.lfm2_vl import Lfm2VlImageProcessorPil
from builtin_plugins.input_processors.transformers.minimax_m3 import MiniMaxM3VLImageProcessorPil
from builtin_plugins.input_processors.transformers.molmo2 import Molmo2ImageProcessorPil
from builtin_plugins.input_processors.transformers.step3p7 import Step3p7ImageProcessorPil

CROPS: Final = {
    (40, 30): (1, 1, 0),
    (640, 480): (1, 3, 0),
    (1000, 300): (1, 3, 2),
    (300, 1700): (1, 5, 6),
    (1600, 1200): (7, 13, 9),
    (513, 513): (1, 5, 0),
}
"""Numbers of crops of transformers 5.23 with torchvision 0.28, by width and height of an image:
LFM2-VL's, Command A Vision's and Step 3.7's.
"""

MOLMO_2: Final = {
    (40, 30): ([14, 14, 14, 14], 0.393976),
    (640, 480): ([14, 14, 23, 23], 0.387518),
    (300, 1700): ([14, 14, 61, 14], 0.384200),
}
"""Molmo 2's rows and columns of tokens by width and height of an image, and the standard deviation
of the values of an image of noise, of the same versions.
"""


def image(width: int, height: int) -> Any:
    return Image.fromarray(np.zeros((height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", CROPS)
def test_lfm2_vl_cuts_an_image_into_the_crops_of_transformers(size: tuple[int, int]) -> None:
    found: Any = Lfm2VlImageProcessorPil()(image(*size), return_tensors="pt")
    assert len(found["pixel_values"]) == CROPS[size][0]
    patches = found["spatial_shapes"].prod(dim=-1).tolist()
    assert found["pixel_attention_mask"].sum(dim=-1).tolist() == patches


@pytest.mark.parametrize("size", CROPS)
def test_command_a_vision_cuts_an_image_into_the_tiles_of_transformers(
    size: tuple[int, int],
) -> None:
    found: Any = Cohere2VisionImageProcessorPil()(image(*size), return_tensors="pt")
    assert len(found["pixel_values"]) == CROPS[size][1]


@pytest.mark.parametrize("size", CROPS)
def test_step_3_7_cuts_an_image_into_the_windows_of_transformers(size: tuple[int, int]) -> None:
    found: Any = Step3p7ImageProcessorPil()(image(*size), return_tensors="pt")
    count = CROPS[size][2]
    assert found["num_local_patches"].tolist() == [count]
    assert len(found.get("pixel_values_local", ())) == count
    assert found["pixel_values"].shape == (1, 3, 728, 728)


@pytest.mark.parametrize("size", MOLMO_2)
def test_molmo_2_resizes_and_cuts_an_image_as_transformers(size: tuple[int, int]) -> None:
    width, height = size
    noise = np.random.RandomState(width).randint(0, 255, (height, width, 3), dtype=np.uint8)
    found: Any = Molmo2ImageProcessorPil()(Image.fromarray(noise), return_tensors="pt")
    grid, deviation = MOLMO_2[size]
    assert found["image_grids"].tolist() == [grid]
    assert float(found["pixel_values"].std()) == pytest.approx(deviation, abs=1e-5)


@pytest.mark.parametrize(
    ("size", "grid"), [((40, 30), [1, 4, 6]), ((1600, 1200), [1, 40, 54])], ids=str
)
def test_minimax_m3_resizes_an_image_within_its_limits_of_pixels(
    size: tuple[int, int], grid: list[int]
) -> None:
    processor: Any = MiniMaxM3VLImageProcessorPil(size=[672, 672])  # as published, and unused
    found = processor(image(*size), return_tensors="pt")
    assert found["image_grid_thw"].tolist() == [grid]
