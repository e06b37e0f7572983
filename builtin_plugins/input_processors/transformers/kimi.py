"""The image processor of Kimi K2.5 with Pillow; transformers has one with torchvision only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import PILImageResampling, SizeDict
from transformers.processing_utils import ImagesKwargs


class KimiImagesKwargs(ImagesKwargs, total=False):
    """Settings of a call besides those of all image processors."""

    max_patches: int
    patch_size: int
    merge_size: int


class Kimi_K25ImageProcessorPil(PilBackend):
    """An image is reduced to a number of patches, never enlarged, and padded to whole merged ones.

    `size` has the maximum number of patches of a side.
    """

    do_resize = True
    resample = PILImageResampling.BICUBIC
    size = {"max_height": 512, "max_width": 512}
    do_rescale = True
    do_normalize = True
    image_mean = (0.5, 0.5, 0.5)
    image_std = (0.5, 0.5, 0.5)
    do_convert_rgb = True
    max_patches = 16384
    patch_size = 14
    merge_size = 2
    valid_kwargs = KimiImagesKwargs
    model_input_names = ["pixel_values", "image_grid_thw"]

    def _preprocess(  # type: ignore[override]  # with settings of its own
        self,
        images: Sequence[np.ndarray],
        *,
        do_resize: bool,
        size: Any,
        patch_size: int,
        merge_size: int,
        max_patches: int,
        return_tensors: Any,
        **options: Any,
    ) -> Any:
        """Return patches [patches, channels, side, side] of all images, and their grids."""
        patches = []
        grids = []
        for image in images:
            height, width = image.shape[-2:]
            if do_resize:
                limit = size.max_height * patch_size
                scale = _scale(height, width, patch_size, max_patches, limit)
                height, width = (
                    min(max(1, int(length * scale)), limit) for length in (height, width)
                )
                resized = self.resize(image, SizeDict(height=height, width=width), **options)
                image = _padded(resized, patch_size * merge_size)
            channels, height, width = image.shape
            if options["do_rescale"]:
                image = self.rescale(image, options["rescale_factor"])
            if options["do_normalize"]:
                image = self.normalize(image, options["image_mean"], options["image_std"])
            rows = height // patch_size
            columns = width // patch_size
            cut = image.reshape(channels, rows, patch_size, columns, patch_size)
            cut = cut.transpose(1, 3, 0, 2, 4).reshape(-1, channels, patch_size, patch_size)
            patches.append(torch.from_numpy(np.ascontiguousarray(cut, dtype=np.float32)))
            grids.append([1, rows, columns])
        data = {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}
        return BatchFeature(data=data, tensor_type=return_tensors)


def _scale(height: int, width: int, patch_size: int, max_patches: int, limit: int) -> float:
    """Return the factor on the sides of an image, at most 1."""
    count = max(1, height // patch_size) * max(1, width // patch_size)
    return min(1.0, math.sqrt(max_patches / count), limit / height, limit / width)


def _padded(image: np.ndarray, side: int) -> np.ndarray:
    """Return an image [channels, height, width] with zeros up to multiples of `side`."""
    height, width = image.shape[-2:]
    return np.pad(image, ((0, 0), (0, -height % side), (0, -width % side)))
