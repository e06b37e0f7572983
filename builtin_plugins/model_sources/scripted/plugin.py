"""The `scripted:` model: no files, replies with the text of the last user message."""

from __future__ import annotations

from typing import Annotated, Final

from core.api import AllowEmpty, EngineConfig, Entry, Option, Range, hookimpl
from core.api.models import ModelSource

NEEDS: Final = ("model=scripted:*",)


@hookimpl(tryfirst=True)
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | None:
    if not model.startswith("scripted:"):
        return None
    from builtin_plugins.model_sources.scripted.script import (
        scripted_source,
    )  # lazy: only for this model

    return scripted_source(model, config)


@hookimpl
def engine_models() -> list[Entry]:
    return [
        Entry(
            "ScriptedModel",
            "builtin_plugins.model_sources.scripted.model:scripted_architecture",
            "echo of the last message",
        )
    ]


@hookimpl
def engine_tokenizers() -> list[Entry]:
    target = "builtin_plugins.model_sources.scripted.tokenizer:ScriptedTokenizer"
    return [Entry("scripted", target, "bytes plus special tokens")]


@hookimpl
def engine_weight_loaders() -> list[Entry]:
    target = "core.models.layers.weights:NoWeights"
    return [Entry("scripted", target, "for a model without weights")]


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "scripted_tokens_per_second",
            Annotated[float, Range(0.001, 1e9)] | None,
            None,
            "Tokens per second of each request; default: no limit.",
            needs=NEEDS,
        ),
        Option(
            "scripted_fail_at_token",
            Annotated[int, Range(1, 1 << 24)] | None,
            None,
            "Every request fails at its N-th token, from 1.",
            needs=NEEDS,
        ),
        Option(
            "scripted_answers",
            str | None,
            None,
            "File of answers, one a line: plain text, a JSON string, or a JSON object with "
            "`prompt`, `answer` and "
            "`fail_at_token`. Objects with a `prompt` answer that message; the others go to new "
            "prompts in turn.",
            needs=NEEDS,
        ),
        Option(
            "scripted_special_tokens",
            list[str],
            [],
            "Texts that are one special token each.",
            needs=NEEDS,
        ),
        Option(
            "scripted_tokens",
            list[Annotated[str, AllowEmpty()]],
            [],
            "Texts that are one token each and stay in the output.",
            needs=NEEDS,
        ),
        Option(
            "scripted_max_model_len",
            Annotated[int, Range(2, 1 << 24)],
            32768,
            "Context length of the scripted model.",
            needs=NEEDS,
        ),
    ]
