"""Tool call parsers, one entry per name people know from vLLM."""

from __future__ import annotations

from core.api import Entry, hookimpl

_HERE = "builtin_plugins.tool_parsers"


@hookimpl
def engine_tool_parsers() -> list[Entry]:
    return [
        Entry("hermes", f"{_HERE}.hermes:HERMES", "<tool_call>{json}</tool_call>: Hermes 2 Pro and 3, Qwen 2.5 and 3"),
    ]
