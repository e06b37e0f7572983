"""Loads a checkpoint's processor, with or without torchvision.

Images are resized by Pillow in either case, so results do not depend on what is installed. A
processor that reads videos or audio, too, is put together without those parts: transformers cannot
construct some of them without torchvision.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import transformers
from transformers.models.auto import processing_auto

from builtin_plugins.input_processors.transformers.blip2_texts import Blip2ImageTexts
from builtin_plugins.input_processors.transformers.cohere import Cohere2VisionImageProcessorPil
from builtin_plugins.input_processors.transformers.fuyu_images import FuyuImageProcessorPil
from builtin_plugins.input_processors.transformers.idefics2_texts import Idefics2ImageTexts
from builtin_plugins.input_processors.transformers.kimi import Kimi_K25ImageProcessorPil
from builtin_plugins.input_processors.transformers.lfm2_vl import Lfm2VlImageProcessorPil
from builtin_plugins.input_processors.transformers.llama4 import Llama4ImageProcessorPil
from builtin_plugins.input_processors.transformers.minicpm import (
    MiniCPMCanvasProcessor,
    MiniCPMProcessor,
)
from builtin_plugins.input_processors.transformers.minimax_m3 import (
    MiniMaxM3VLImageProcessorPil,
)
from builtin_plugins.input_processors.transformers.molmo2 import (
    Molmo2ImageProcessorPil,
    Molmo2ImageTexts,
)
from builtin_plugins.input_processors.transformers.phi4_multimodal import (
    Phi4MultimodalImageProcessorPil,
)
from builtin_plugins.input_processors.transformers.pixtral import PixtralProcessor
from builtin_plugins.input_processors.transformers.smolvlm import SmolVLMProcessor
from builtin_plugins.input_processors.transformers.step3p7 import Step3p7ImageProcessorPil
from core.api import ModelError
from core.api.models import ModelSource

MAX_FILE_BYTES: Final = 2**20
"""Largest size of a file with settings of a processor."""
FILES: Final = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
"""Files that may name the class of a processor, in transformers' order."""
STAND_INS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "Blip2Processor": Blip2ImageTexts,
        "Idefics2Processor": Idefics2ImageTexts,
        "MiniCPMV4_6Processor": MiniCPMProcessor,
        "MiniCPMV4_7Processor": MiniCPMCanvasProcessor,
        "Molmo2Processor": Molmo2ImageTexts,
        "PixtralProcessor": PixtralProcessor,
        "SmolVLMProcessor": SmolVLMProcessor,
    }
)
"""Processors that transformers cannot construct without packages that images do not need."""
IMAGE_STAND_INS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "Cohere2VisionImageProcessor": Cohere2VisionImageProcessorPil,
        "FuyuImageProcessor": FuyuImageProcessorPil,
        "Kimi_K25ImageProcessor": Kimi_K25ImageProcessorPil,
        "Lfm2VlImageProcessor": Lfm2VlImageProcessorPil,
        "Llama4ImageProcessor": Llama4ImageProcessorPil,
        "MiniMaxM3VLImageProcessor": MiniMaxM3VLImageProcessorPil,
        "Molmo2ImageProcessor": Molmo2ImageProcessorPil,
        "Phi4MultimodalImageProcessor": Phi4MultimodalImageProcessorPil,
        "Step3p7ImageProcessor": Step3p7ImageProcessorPil,
    }
)
"""Image processors that transformers has with torchvision only, by names without a backend."""
PARTS: Final = frozenset({"image_processor", "tokenizer"})
"""Parts of a processor that are used."""


def load_processor(source: ModelSource) -> Any:
    """Return the processor of a checkpoint. Raises `ModelError`."""
    processor = _checked(source, _load)
    if not isinstance(processor, transformers.ProcessorMixin):
        raise ModelError(
            f"processor_class: got one that transformers loads as {type(processor).__name__}; "
            "expected a processor of images. Restore the original processor_config.json."
        )
    return processor


def load_image_processor(source: ModelSource) -> Any:
    """Return the image processor of a checkpoint. Raises `ModelError`."""
    return _checked(source, lambda source: _image_processor(str(source.path)))


def _checked(source: ModelSource, load: Callable[[ModelSource], Any]) -> Any:
    """Return what is loaded from the files of a checkpoint. Raises `ModelError`."""
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
        return load(source)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            "preprocessor_config.json, processor_config.json: transformers cannot load the "
            f"processor ({type(error).__name__}: {error!s:.300}). Restore the original files."
        ) from error


def _load(source: ModelSource) -> Any:
    path = str(source.path)
    model_type = str(getattr(source.hf_config, "model_type", None))
    name = _class_name(path, model_type) or ""
    processor_class: Any = STAND_INS.get(name) or getattr(transformers, name, None)
    try:
        image_processor = _image_processor(path)
        is_own = type(image_processor) in IMAGE_STAND_INS.values()
        if name in STAND_INS and not is_own:
            return processor_class.from_pretrained(path, image_processor=image_processor)
        if processor_class is not None and (
            is_own or not PARTS.issuperset(processor_class.get_attributes())
        ):
            return _images_only(processor_class, path, image_processor)
        auto: Any = transformers.AutoProcessor
        # Not None: transformers would then ask the terminal whether to run code of the files.
        processor = auto.from_pretrained(path, trust_remote_code=False)
        processor.image_processor = image_processor
        return processor
    except (AttributeError, ImportError, OSError, ValueError) as error:
        if processor_class is not None:
            raise  # it is known, so its files are wrong
        raise ModelError(
            f"model_type: got {model_type!r}; expected one that transformers has a processor "
            f"for ({error}). Install a newer transformers."
        ) from error


def _class_name(path: str, model_type: str) -> str | None:
    """Return the class that a checkpoint names, or that of its model type; None without one."""
    for name in FILES:
        file = Path(path) / name
        stated = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if isinstance(stated, Mapping) and isinstance(stated.get("processor_class"), str):
            return str(stated["processor_class"])
    known: Any = processing_auto
    name = known.PROCESSOR_MAPPING_NAMES.get(model_type)
    return None if name is None else str(name)


def _image_processor(path: str) -> Any:
    auto: Any = transformers.AutoImageProcessor
    mixin: Any = transformers.ImageProcessingMixin
    stated, _ = mixin.get_image_processor_dict(path)
    name = str(stated.get("image_processor_type"))
    own = IMAGE_STAND_INS.get(name.removesuffix("Fast").removesuffix("Pil"))
    if own is not None:
        return own.from_pretrained(path)
    return auto.from_pretrained(path, backend="pil", trust_remote_code=False)


def _images_only(processor_class: Any, path: str, image_processor: Any) -> Any:
    """Return a processor with None for its other parts."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    parts = {"image_processor": image_processor, "tokenizer": tokenizer}
    made: Any = type(
        processor_class.__name__,
        (processor_class,),
        {
            "_get_arguments_from_pretrained": classmethod(
                lambda cls, *_, **__: [parts.get(name) for name in cls.get_attributes()]
            ),
            "check_argument_for_proper_class": lambda self, name, argument: type(argument),
        },
    )
    return made.from_pretrained(path)
