"""The image processor of Step 3.7 with Pillow; transformers has one with torchvision only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import PILImageResampling, SizeDict
from transformers.models.step3p7.image_processing_step3p7 import Step3p7ImageProcessor
from transformers.processing_utils import ImagesKwargs

from builtin_plugins.input_processors.transformers.largest_sizes import check_area


class Step3p7ImagesKwargs(ImagesKwargs, total=False):
    """Settings of a call besides those of all image processors."""

    patch_size: int
    max_image_size: int
    vision_patch_size: int
    downsampler_stride: int


class Step3p7ImageProcessorPil(PilBackend):
    """A small view of the whole image, and windows of it that depend on its shape."""

    resample = PILImageResampling.BILINEAR
    size = {"height": 728, "width": 728}
    patch_size = 504
    """Side of a window's view."""
    max_image_size = 3024
    vision_patch_size = 14
    downsampler_stride = 4
    do_rescale = True
    do_normalize = True
    image_mean = (0.48145466, 0.4578275, 0.40821073)
    image_std = (0.26862954, 0.26130258, 0.27577711)
    do_convert_rgb = True
    valid_kwargs = Step3p7ImagesKwargs
    model_input_names = ["pixel_values", "pixel_values_local", "num_local_patches"]
    _is_extreme_aspect = staticmethod(Step3p7ImageProcessor._is_extreme_aspect)
    _plan_patches: Any = Step3p7ImageProcessor._plan_patches

    def _preprocess(  # type: ignore[override]  # with settings of its own
        self,
        images: Sequence[np.ndarray],
        *,
        size: Any,
        patch_size: int,
        resample: PILImageResampling | None,
        return_tensors: Any,
        **options: Any,
    ) -> Any:
        """Return the views of all images, their windows, and where a row of windows ends."""
        views = []
        windows: list[np.ndarray] = []
        counts = []
        ends: list[list[bool]] = []
        for image in images:
            height, width = image.shape[-2:]
            plan = self._plan_patches(width, height, size.height, patch_size)
            whole, cropped, side, columns, rows, is_padded = plan
            if is_padded:
                longest = max(width, height)
                check_area(longest, longest, height * width)
                image = np.pad(image, ((0, 0), (0, longest - height), (0, longest - width)))
            view = self.resize(image, SizeDict(height=whole[1], width=whole[0]), resample=resample)
            square = SizeDict(height=size.height, width=size.height)
            views.append(self.resize(view, square, resample=resample))
            cut: list[np.ndarray] = []
            if side:
                check_area(rows * patch_size, columns * patch_size)
                target = SizeDict(height=cropped[1], width=cropped[0])
                canvas = self.resize(image, target, resample=resample)
                cut = [
                    canvas[:, top : top + side, left : left + side]
                    for top in range(0, cropped[1], side)
                    for left in range(0, cropped[0], side)
                ]
            counts.append(len(cut))
            ends.append(
                [
                    column == columns - 1 and row < rows - 1
                    for row in range(rows)
                    for column in range(columns)
                ]
            )
            own = SizeDict(height=patch_size, width=patch_size)
            windows += [self.resize(window, own, resample=resample) for window in cut]
        data = {
            "pixel_values": self._normalized(views, options),
            "num_local_patches": torch.tensor(counts),
        }
        found = BatchFeature(data=data, tensor_type=return_tensors)
        if windows:
            found["pixel_values_local"] = self._normalized(windows, options)
            found["patch_newline_masks"] = ends
        return found

    def _normalized(self, images: Sequence[np.ndarray], options: dict[str, Any]) -> torch.Tensor:
        """Return images as one tensor of floats."""
        found = []
        for image in images:
            if options["do_rescale"]:
                image = self.rescale(image, options["rescale_factor"])
            if options["do_normalize"]:
                image = self.normalize(image, options["image_mean"], options["image_std"])
            found.append(np.asarray(image, dtype=np.float32))
        return torch.from_numpy(np.stack(found))
