"""Tiles of Llama 4 are those of transformers, in which they need torchvision."""

from __future__ import annotations

import ast
import importlib.util
import math
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL", reason="Pillow is not installed")

from PIL import Image
from transformers.image_utils import SizeDict

from builtin_plugins.input_processors.transformers.llama4 import Llama4ImageProcessorPil

SIDE = 16


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    """Return the functions on sizes of transformers' module, which needs torchvision as a whole."""
    package = importlib.util.find_spec("transformers.models.llama4")
    assert package is not None
    folder = Path(str(package.origin)).parent
    source = (folder / "image_processing_llama4.py").read_text(encoding="utf-8")
    names = {"get_factors", "get_best_fit", "get_max_res_without_distortion"}
    names |= {"find_supported_resolutions"}
    tree = ast.parse(source)
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    for function in found:
        function.decorator_list.clear()
    space: dict[str, Any] = {
        "math": math,
        "torch": torch,
        "defaultdict": defaultdict,
        "SizeDict": SizeDict,
    }
    exec(compile(ast.Module(found, []), "llama4", "exec"), space)
    return space


def expected(truth: dict[str, Any], height: int, width: int, limit: int, largest: bool) -> Any:
    """Return rows and columns of tiles, and the size of the image in them."""
    size = SizeDict(height=SIDE, width=SIDE)
    sizes = torch.tensor(truth["find_supported_resolutions"](limit, size))
    target = truth["get_best_fit"]((height, width), sizes, resize_to_max_canvas=largest)
    rows, columns = (int(length) for length in target)
    limits = rows, columns
    if not largest:
        limits = min(max(height, SIDE), rows), min(max(width, SIDE), columns)
    fitted = truth["get_max_res_without_distortion"]((height, width), limits)
    return (rows // SIDE, columns // SIDE), fitted


@pytest.mark.parametrize("largest", [False, True])
def test_sizes_of_tiles_equal_transformers(truth: dict[str, Any], largest: bool) -> None:
    chance = random.Random(7)
    processor = Llama4ImageProcessorPil(size={"height": SIDE, "width": SIDE})
    for _ in range(60):
        height = chance.randint(1, 90)
        width = chance.randint(1, 90)
        limit = chance.randint(1, 9)
        grid, fitted = expected(truth, height, width, limit, largest)
        white = Image.fromarray(np.full((height, width, 3), 255, np.uint8))
        out = processor(
            [white], max_patches=limit, resize_to_max_canvas=largest, return_tensors="pt"
        )
        assert tuple(out["aspect_ratios"][0].tolist()) == grid
        rows, columns = grid
        tiles = out["pixel_values"][: rows * columns].float()
        canvas = tiles.reshape(rows, columns, 3, SIDE, SIDE).permute(2, 0, 3, 1, 4)
        filled = canvas.reshape(3, rows * SIDE, columns * SIDE)[0] > 0.5
        assert int(filled[:, 0].sum()) == max(fitted[0], 1)
        assert int(filled[0].sum()) == max(fitted[1], 1)
        assert len(out["pixel_values"]) == rows * columns + (rows * columns > 1)
