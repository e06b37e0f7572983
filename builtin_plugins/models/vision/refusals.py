"""Why a model that reads images is not served."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final

from transformers.models.auto import image_processing_auto

from core.api import ModelError

CROSS_ATTENTION: Final = "its text attends to images by cross-attention: they are no prompt tokens"
ENCODER_DECODER: Final = "an encoder reads its images, and they are no tokens of the prompt"
REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "BlipForConditionalGeneration": CROSS_ATTENTION,
        "DiffusionGemmaForBlockDiffusion": "it writes blocks of text by diffusion",
        "Dots3NoteForConditionalGeneration": "its text part is native, its towers were not tried",
        "Emu3ForConditionalGeneration": "its images become tokens of its vocabulary",
        "GitForCausalLM": "its image comes before its text, not in the prompt",
        "Granite4VisionForConditionalGeneration": "its tower adds to layers chosen by the config",
        "IdeficsForVisionText2Text": CROSS_ATTENTION,
        "InklingForConditionalGeneration": "transformers cannot make its tower: sizes are tensors",
        "InstructBlipForConditionalGeneration": "its tower reads the text of the prompt, too",
        "InstructBlipVideoForConditionalGeneration": "it reads videos",
        "Kosmos2ForConditionalGeneration": "a mask, and no token, tells where its images are",
        "Kosmos2_5ForConditionalGeneration": "a mask, and no token, tells where its images are",
        "PI0ForConditionalGeneration": "it controls robots",
        "PPFormulaNetForConditionalGeneration": ENCODER_DECODER,
        "Pix2StructForConditionalGeneration": ENCODER_DECODER,
        "T5Gemma2ForConditionalGeneration": ENCODER_DECODER,
        "UdopForConditionalGeneration": ENCODER_DECODER,
        "VisionEncoderDecoderModel": ENCODER_DECODER,
    }
)
"""Reasons by architecture, for models without a `Family`."""
REFUSED_MARKS: Final = {
    "block_sequence_ids": "tokens of its images see each other, which is known for no such model",
    "or_mask_function": "it has an attention mask of its own",
    "get_rope_index": "it counts positions in several axes in a way that is not known",
    "deepstack": "its tower adds to several layers in a way that is not known",
}
"""Texts in a model's source that tell what only an entry in `FAMILIES` can vouch for."""
TIMM_TYPES: Final = ("timm_wrapper", "gemma3n_vision")
"""Model types of towers that timm has: without it, transformers cannot even read their configs."""


def why_not(model_class: Any, config: Any) -> str | None:
    """Return why a model without a `Family` cannot be served; None if it can."""
    known = REFUSED.get(model_class.__name__)
    if known is not None:
        return known
    if _needs_torchvision(config.model_type):
        return "its image processor needs torchvision, and images are resized by Pillow here"
    if not hasattr(model_class, "get_image_features"):
        return "it has no get_image_features: images are not embeddings of its prompt"
    source = inspect.getsource(inspect.getmodule(model_class) or model_class)
    for mark, reason in REFUSED_MARKS.items():
        if mark in source:
            return reason
    return None


def _needs_torchvision(model_type: str) -> bool:
    """Return whether transformers has an image processor for torchvision, but none for Pillow."""
    known: Any = image_processing_auto
    backends = known.IMAGE_PROCESSOR_MAPPING_NAMES.get(model_type) or {}
    return "torchvision" in backends and "pil" not in backends


def check_timm(hf_config: Any) -> None:
    """Raise `ModelError` if a model needs timm, and it is not installed."""
    vision = getattr(hf_config, "vision_config", None)
    fields = vision if isinstance(vision, Mapping) else vars(vision or object)
    model_type = fields.get("model_type")
    if model_type in TIMM_TYPES and find_spec("timm") is None:
        raise ModelError(
            f"vision_config.model_type: got {model_type!r}; expected timm to be installed, which "
            "has this tower. Run `pip install timm`."
        )
