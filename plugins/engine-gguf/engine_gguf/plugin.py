"""Entry points: a model source, a weight loader, a quantization method, and options."""

from __future__ import annotations

from typing import Literal

from core.api import EngineConfig, Entry, Option, hookimpl
from core.api.models import ModelSource


@hookimpl
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | None:
    """Find a file, a folder of GGUF files, or a name with a type after a colon."""
    from engine_gguf.files import find_file  # lazy: only for a model

    path = find_file(model, config)
    if path is None:
        return None
    from engine_gguf.source import find  # lazy: only for a GGUF file

    return find(str(path), config)


@hookimpl
def engine_weight_loaders() -> list[Entry]:
    """Return the loader's entry."""
    return [
        Entry("gguf", "engine_gguf.loader:GgufLoader", "one GGUF file or its splits, memory-mapped")
    ]


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    return [
        Entry(
            "gguf",
            "engine_gguf.method:Gguf",
            ("blocks of GGUF files, multiplied in their stored format"),
        )
    ]


@hookimpl
def engine_options() -> list[Option]:
    """Options for another config, and for the activation bits of block products."""
    described = (
        "Folder with a config.json that describes the model of a GGUF file, instead of its "
        "settings."
    )
    bits = "Activation bits in products with GGUF blocks (default: 16 in float32, else 8)."
    return [
        Option("hf_config_path", str | None, None, described),
        Option("gguf_activations", Literal[8, 16] | None, None, bits),
    ]
