"""Requests of models with an encoder: two prompts, of which the encoder reads one."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, hookimpl


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.features.encoder_inputs.admission import (
        EncoderPrompts,
    )  # lazy: start-up stays quick

    return [EncoderPrompts()]
