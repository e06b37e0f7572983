"""The pooling runner."""

from __future__ import annotations

from typing import Any, Literal

from core.api import EngineConfig, Entry, Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    """Return the options of pooling."""
    purposes = Literal["auto", "none", "embed", "classify", "reward"]
    what = "Pooling task of a generating model; auto: by its architecture's name or its files."
    how = "Pooling settings as JSON, which override the model's files."
    return [
        Option("convert", purposes, "auto", what),
        Option("pooler_config", dict[str, Any] | None, None, how),
    ]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    if given := config.options.get("pooler_config"):
        # lazy: start-up stays quick
        from builtin_plugins.runners.pooling.pooler_config import given_keys

        given_keys(given)


@hookimpl
def engine_runners() -> list[Entry]:
    """Return the runner; it precedes the generating runner, which accepts any causal model."""
    target = "builtin_plugins.runners.pooling.runner:Pooling"
    return [Entry("pooling", target, "embeddings, labels and scores of prompts", priority=10)]
