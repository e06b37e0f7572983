"""Prompts as embeddings: the option, and the admission and worker halves."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "enable_prompt_embeds",
            bool,
            False,
            "Take prompts as embeddings [tokens, hidden]: tensors offline, `prompt_embeds` of "
            "completions.",
        )
    ]


@hookimpl
def engine_admission_extensions(config: EngineConfig) -> list[Any]:
    # Imported lazily for a fast start.
    from builtin_plugins.features.multimodal.prompt_embeds.admission import PromptEmbedsAdmission

    return [PromptEmbedsAdmission(enabled=_is_enabled(config))]


@hookimpl
def engine_runner_extensions(config: EngineConfig) -> list[Any]:
    if not _is_enabled(config):
        return []
    # Imported lazily: only workers need torch.
    from builtin_plugins.features.multimodal.prompt_embeds.worker import PromptEmbedsWorker

    return [PromptEmbedsWorker()]


def _is_enabled(config: EngineConfig) -> bool:
    return bool(config.options.get("enable_prompt_embeds"))
