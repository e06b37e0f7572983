"""Loads a checkpoint's processor, with or without torchvision.

Images are resized by Pillow in either case, so results do not depend on what is installed. Without
torchvision, transformers cannot construct a processor that also reads videos; such a processor is
put together here without its video part.
"""

from __future__ import annotations

from typing import Any

import transformers
from transformers.models.auto import processing_auto

from core.api import ModelError
from core.api.models import ModelSource


def load_processor(source: ModelSource) -> Any:
    """Return the processor of a checkpoint. Raises `ModelError`."""
    assert source.path is not None
    try:
        auto: Any = transformers.AutoProcessor
        processor = auto.from_pretrained(source.path)
        processor.image_processor = _image_processor(source.path)
        return processor
    except (AttributeError, ImportError, OSError, ValueError) as error:
        model_type = str(getattr(source.hf_config, "model_type", None))
        known: Any = processing_auto
        name = known.PROCESSOR_MAPPING_NAMES.get(model_type)
        if name is None:
            raise ModelError(
                f"model_type: got {model_type!r}; expected one that transformers has a processor "
                f"for ({error}). Install a newer transformers."
            ) from error
        return _without_video(getattr(transformers, name), source.path)


def _image_processor(path: str) -> Any:
    auto: Any = transformers.AutoImageProcessor
    return auto.from_pretrained(path, backend="pil")


def _without_video(processor_class: Any, path: str) -> Any:
    """Return a processor without its video processor."""
    stated, _ = processor_class.get_processor_dict(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    image_processor = _image_processor(path)
    make = type(
        processor_class.__name__,
        (processor_class,),
        {
            "get_attributes": classmethod(lambda cls: ["image_processor", "tokenizer"]),
            "check_argument_for_proper_class": lambda self, name, argument: type(argument),
        },
    )
    kwargs = {
        name: value
        for name, value in stated.items()
        if name not in ("image_processor", "video_processor", "tokenizer", "processor_class")
    }
    return make(
        image_processor=image_processor,
        tokenizer=tokenizer,
        video_processor=None,
        **kwargs,
    )
