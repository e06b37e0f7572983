"""The runner of models that are pooled."""

from __future__ import annotations

from typing import Any, Literal

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    """What a model is pooled for, and how."""
    purposes = Literal["auto", "none", "embed", "classify", "reward"]
    what = "What a model that generates tokens is pooled for; auto: what its architecture's name or its files say."
    how = "How hidden states are pooled, as JSON; laid over what the model's files say."
    return [
        Option("convert", purposes, "auto", what),
        Option("pooler_config", dict[str, Any] | None, None, how),
    ]


@hookimpl
def engine_runners() -> list[Entry]:
    """Asked before the one that generates, which takes any model that makes tokens."""
    target = "builtin_plugins.runners.pooling.runner:Pooling"
    return [Entry("pooling", target, "embeddings, labels and scores of prompts", priority=10)]
