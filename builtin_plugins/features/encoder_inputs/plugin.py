"""Encoder inputs: requests with a prompt for the encoder and one for the decoder."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Registry, hookimpl


@hookimpl(trylast=True)  # the prompt is that of the encoder once other features completed it
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    # Imported lazily for a fast start.
    from builtin_plugins.features.encoder_inputs.admission import EncoderPrompts

    return [EncoderPrompts()]
