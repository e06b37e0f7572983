"""Processors refuse to make gigabytes of a line of pixels; other images are processed as before."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

import transformers
from PIL import Image

from builtin_plugins.input_processors.contract import ITEM
from builtin_plugins.input_processors.transformers.largest_sizes import (
    MAX_PIXELS,
    bound_sizes,
    check_area,
)
from builtin_plugins.input_processors.transformers.processor import TransformersProcessor
from builtin_plugins.input_processors.transformers.step3p7 import Step3p7ImageProcessorPil
from core.api import EngineConfig, InvalidRequest
from core.config.sections import ModelConfig
from tests.builtin_plugins.models.vision.checkpoints import MODELS

PUBLISHED: dict[str, Any] = {
    "CLIP, shorter side 224": lambda: transformers.CLIPImageProcessorPil(),
    "Chameleon, shorter side 512": lambda: transformers.ChameleonImageProcessorPil(),
    "LLaVA, shorter side 336": lambda: transformers.LlavaImageProcessorPil(
        size={"shortest_edge": 336}
    ),
    "LLaVA, padded": lambda: transformers.LlavaImageProcessorPil(do_pad=True),
    "Step 3.7, padded": Step3p7ImageProcessorPil,
    "Video-LLaVA, shorter side 224": lambda: transformers.VideoLlavaImageProcessor(),
}


@pytest.mark.parametrize("size", [(20_000, 1), (1, 20_000)])
@pytest.mark.parametrize("name", PUBLISHED)
def test_line_of_pixels_is_refused_before_it_is_enlarged(name: str, size: tuple[int, int]) -> None:
    processor = PUBLISHED[name]()
    bound_sizes(processor)
    with pytest.raises(ValueError, match=f"expected at most {MAX_PIXELS} pixels. Crop it"):
        processor(images=[Image.new("RGB", size)], return_tensors="np")


def test_thousands_of_windows_are_refused() -> None:
    with pytest.raises(ValueError, match=f"expected at most {MAX_PIXELS} pixels. Crop it"):
        Step3p7ImageProcessorPil()(images=[Image.new("RGB", (90_000, 33))], return_tensors="np")


@pytest.mark.parametrize("size", [(640, 480), (1500, 30), (20, 900)])
@pytest.mark.parametrize("name", PUBLISHED)
def test_other_images_are_processed_as_before(name: str, size: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (*size, 3), np.uint8))
    bounded = PUBLISHED[name]()
    bound_sizes(bounded)
    found, expected = (
        next(iter(each(images=[image], return_tensors="np").values()))
        for each in (bounded, PUBLISHED[name]())
    )
    assert np.array_equal(found, expected)


def test_large_photo_may_be_padded() -> None:
    check_area(8064, 8064, 8064 * 6048)
    with pytest.raises(ValueError, match="8064 x 8064 of it"):
        check_area(8064, 8064, 8064 * 16)


def test_refusal_names_the_item(tmp_path: Path) -> None:
    MODELS["llava"].make(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    source: Any = SimpleNamespace(path=str(tmp_path), hf_config=SimpleNamespace(**fields))
    processor = TransformersProcessor(source, EngineConfig(ModelConfig(str(tmp_path))))
    with pytest.raises(InvalidRequest, match=r"got 1 x 200000 pixels, .* Crop it") as refused:
        processor.process("image", Image.new("RGB", (1, 200_000)), {})
    assert refused.value.field == ITEM
