"""All hostile files."""

from __future__ import annotations

from typing import Final

from tests.system.hostile_files import (
    adapters,
    checkpoint_configs,
    generation,
    image_processors,
    kv_folders,
    option_files,
    quantization,
    templates,
    tokenizers,
    weights,
)
from tests.system.hostile_files.hostile_file import HostileFile

CORPUS: Final[list[HostileFile]] = [
    *checkpoint_configs.CORPUS,
    *weights.CORPUS,
    *tokenizers.CORPUS,
    *templates.CORPUS,
    *generation.CORPUS,
    *quantization.CORPUS,
    *adapters.CORPUS,
    *kv_folders.CORPUS,
    *image_processors.CORPUS,
    *option_files.CORPUS,
]
