"""Reasoning parsers, one entry per name people know from vLLM."""

from __future__ import annotations

from core.api import Entry, hookimpl

_HERE = "builtin_plugins.reasoning_parsers"


@hookimpl
def engine_reasoning_parsers() -> list[Entry]:
    return [
        Entry("deepseek_r1", f"{_HERE}.think:DEEPSEEK_R1", "thoughts up to </think>, with or without <think>"),
        Entry("qwen3", f"{_HERE}.think:QWEN3", "thoughts between <think> and </think>, unless switched off"),
    ]
