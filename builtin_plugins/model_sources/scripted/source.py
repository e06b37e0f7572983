"""What `scripted:` is before it is built: its configuration, read from the plugin's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builtin_plugins.model_sources.scripted.script import Answer, read_answers
from builtin_plugins.model_sources.scripted.tokenizer import END_OF_TEXT, END_OF_TURN
from core.api import ConfigError, EngineConfig, ModelSource


@dataclass(frozen=True, slots=True)
class ScriptedConfig:
    """Stands where a checkpoint's config.json would: all that the model and its tokenizer need."""

    model_type: str = "scripted"
    tokens_per_second: float | None = None
    fail_at_token: int | None = None
    answers: tuple[Answer, ...] = ()
    special_tokens: tuple[str, ...] = ()
    """Texts that are one token and left out of the output like any model's special tokens."""
    markers: tuple[str, ...] = ()
    """Texts that are one token and stay in the output: what parsers look for."""


def scripted_source(name: str, config: EngineConfig) -> ModelSource:
    """Return the source for a name that starts with `scripted:`.

    Raises `ConfigError` naming a bad option.
    """
    options = config.options
    script = ScriptedConfig(
        tokens_per_second=_positive(options, "scripted_tokens_per_second"),
        fail_at_token=_positive(options, "scripted_fail_at_token"),
        answers=read_answers(options["scripted_answers"])
        if options.get("scripted_answers")
        else (),
        special_tokens=_listed(options.get("scripted_special_tokens") or ()),
        markers=_listed(options.get("scripted_tokens") or ()),
    )
    return ModelSource(
        name=name,
        architecture="ScriptedModel",
        hf_config=script,
        identity="scripted",
        max_model_len=_positive(options, "scripted_max_model_len") or 32768,
        eos_token_ids=(END_OF_TURN, END_OF_TEXT),
        tokenizer="scripted",
        weight_loader="scripted",
        origin="scripted",
    )


def _positive(options: Mapping[str, Any], name: str) -> Any:
    value = options.get(name)
    if value is not None and value <= 0:
        raise ConfigError(
            f"--{name.replace('_', '-')} {value} cannot work; give a number greater than 0."
        )
    return value


def _listed(tokens: Any) -> tuple[str, ...]:
    texts = [tokens] if isinstance(tokens, str) else list(tokens)
    return tuple(part for text in texts for part in text.split(",") if part)
