"""Loads a checkpoint's processor, with or without torchvision.

Images are resized by Pillow in either case, so results do not depend on what is installed. Without
torchvision, transformers cannot construct a processor that also reads videos; such a processor is
put together here without its video part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import transformers
from transformers.models.auto import processing_auto

from core.api import ModelError
from core.api.models import ModelSource

MAX_FILE_BYTES: Final = 2**20
"""Largest size of a file with settings of a processor."""


def load_processor(source: ModelSource) -> Any:
    """Return the processor of a checkpoint. Raises `ModelError`."""
    assert source.path is not None
    for path in Path(source.path).glob("*.json"):
        if not path.is_file():
            raise ModelError(f"{path.name}: got no regular file; expected one. Remove it.")
        if "process" in path.name and path.stat().st_size > MAX_FILE_BYTES:
            raise ModelError(
                f"{path.name}: got {path.stat().st_size} bytes; expected at most "
                f"{MAX_FILE_BYTES}. Restore the original file."
            )
    try:
        processor = _load(source)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            "preprocessor_config.json, processor_config.json: transformers cannot load the "
            f"processor ({type(error).__name__}: {error!s:.300}). Restore the original files."
        ) from error
    if not isinstance(processor, transformers.ProcessorMixin):
        raise ModelError(
            f"processor_class: got one that transformers loads as {type(processor).__name__}; "
            "expected a processor of images. Restore the original processor_config.json."
        )
    return processor


def _load(source: ModelSource) -> Any:
    path = str(source.path)
    try:
        auto: Any = transformers.AutoProcessor
        # Not None: transformers would then ask the terminal whether to run code of the files.
        processor = auto.from_pretrained(path, trust_remote_code=False)
        processor.image_processor = _image_processor(path)
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
        return _without_video(getattr(transformers, name), path)


def _image_processor(path: str) -> Any:
    auto: Any = transformers.AutoImageProcessor
    return auto.from_pretrained(path, backend="pil", trust_remote_code=False)


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
