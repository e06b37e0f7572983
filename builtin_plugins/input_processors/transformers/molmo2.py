"""The processor of Molmo 2 without its video part, and its image processor without torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
import transformers.models.molmo2.image_processing_molmo2 as image_processing_molmo2
from transformers import BatchFeature, Molmo2Processor, ProcessorMixin
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import PILImageResampling, SizeDict

TORCHVISION: Final[Any] = image_processing_molmo2.Molmo2ImageProcessor
"""transformers' own class: its methods need torchvision only to resize and to normalize."""
MODES: Final = {PILImageResampling.BILINEAR: "bilinear", PILImageResampling.BICUBIC: "bicubic"}
"""PyTorch's names of the filters of torchvision, which are not those of Pillow."""
TOKENS: Final = ("<im_patch>", "<im_col>", "<im_start>", "<low_res_im_start>", "<im_end>")


class Molmo2ImageTexts(Molmo2Processor):
    """An image reduced to one crop, then its crops, each between tokens of its own."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        image_use_col_tokens: bool = True,
        use_single_crop_col_tokens: bool | None = None,
        use_single_crop_start_token: bool = True,
        **_: Any,
    ) -> None:
        setup: Any = ProcessorMixin.__init__
        setup(self, image_processor, tokenizer, chat_template=chat_template)
        self.image_use_col_tokens = image_use_col_tokens
        self.use_single_crop_col_tokens = use_single_crop_col_tokens
        self.use_single_crop_start_token = use_single_crop_start_token
        self.image_token = getattr(tokenizer, "image_token", "<|image|>")
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.image_token_ids = tokenizer.convert_tokens_to_ids(list(TOKENS))
        self.start_text: str = tokenizer.bos_token or tokenizer.eos_token
        """The text that begins each prompt with images."""


class Molmo2ImageProcessorPil(PilBackend):
    """Crops that overlap, cut from an enlarged image, after the whole of it in one more crop."""

    resample = PILImageResampling.BILINEAR
    image_mean = TORCHVISION.image_mean
    image_std = TORCHVISION.image_std
    size = {"height": 378, "width": 378}
    do_resize = True
    do_rescale = True
    do_normalize = True
    do_convert_rgb = True
    max_crops = 8
    overlap_margins = [4, 4]
    patch_size = 14
    pooling_size = [2, 2]
    valid_kwargs = image_processing_molmo2.Molmo2ImageProcessorKwargs
    model_input_names = TORCHVISION.model_input_names

    def _preprocess(  # type: ignore[override]
        self, images: Sequence[np.ndarray], *, disable_grouping: bool | None = None, **options: Any
    ) -> BatchFeature:
        """Return the patches of all crops, and which of them each token pools."""
        tensors = [torch.from_numpy(np.ascontiguousarray(image)) for image in images]
        found: BatchFeature = TORCHVISION._preprocess(
            self, tensors, disable_grouping=disable_grouping, **options
        )
        return found

    _image_batch_to_patches_and_grids = TORCHVISION._image_batch_to_patches_and_grids
    _build_overlapping_crops = TORCHVISION._build_overlapping_crops

    def resize(  # type: ignore[override]
        self, image: torch.Tensor, size: SizeDict, resample: Any = None, **options: Any
    ) -> torch.Tensor:
        """Return images [..., channels, height, width] resized as torchvision does."""
        mode = MODES.get(resample)
        if mode is None:
            raise ValueError(f"resample: got {resample!r}; expected 2 (bilinear) or 3 (bicubic)")
        assert size.height is not None
        assert size.width is not None
        return torch.nn.functional.interpolate(
            image, (size.height, size.width), mode=mode, antialias=options.get("antialias", True)
        )

    def rescale_and_normalize(
        self,
        images: torch.Tensor,
        do_rescale: bool,
        rescale_factor: float,
        do_normalize: bool,
        image_mean: Sequence[float],
        image_std: Sequence[float],
    ) -> torch.Tensor:
        """Return images [..., channels, height, width] as torchvision's class normalizes them."""
        factor = 1.0 / rescale_factor if do_rescale else 1.0
        if not do_normalize:
            return images.float() / factor
        mean, std = (
            torch.tensor(values)[:, None, None] * factor for values in (image_mean, image_std)
        )
        return (images.float() - mean) / std
