"""Hermes: each call a JSON object between two tags.

Format: the `tool_use` template of NousResearch/Hermes-2-Pro-Llama-3-8B, and Qwen2.5's and Qwen3's
chat templates.
"""

from __future__ import annotations

from typing import Final

from builtin_plugins.output_parsers.tools.json_calls import one_by_one, tags

HERMES: Final = tags(
    "<tool_call>", end="</tool_call>", writes=one_by_one("<tool_call>\n", "\n</tool_call>")
)
