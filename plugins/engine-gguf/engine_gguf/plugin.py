"""What the distribution brings: a source of models, a weight loader, a quantization method, and an
option.
"""

from __future__ import annotations

from typing import Literal

from core.api import EngineConfig, Entry, ModelSource, Option, hookimpl


@hookimpl
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | None:
    """Recognise a file, a folder of such files, and names with a type behind a colon."""
    from engine_gguf.choice import chosen_file  # lazy: only when a model is asked for

    path = chosen_file(model, config)
    if path is None:
        return None
    from engine_gguf.source import find  # lazy: only when such a file is asked for

    return find(str(path), config)


@hookimpl
def engine_weight_loaders() -> list[Entry]:
    """Return the loader."""
    return [
        Entry("gguf", "engine_gguf.loader:GgufLoader", "one GGUF file or its splits, memory-mapped")
    ]


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method."""
    return [
        Entry("gguf", "engine_gguf.method:Gguf", "blocks of GGUF files, multiplied by as they are")
    ]


@hookimpl
def engine_options() -> list[Option]:
    """Another config than the file's own, and how finely activations are multiplied."""
    described = "A folder whose config.json describes the model of a GGUF file, in place of what the file says."
    bits = "Bits that activations are rounded to where a GGUF file's blocks multiply them (default: 16 in float32, else 8)."
    return [
        Option("hf_config_path", str | None, None, described),
        Option("gguf_activations", Literal[8, 16] | None, None, bits),
    ]
