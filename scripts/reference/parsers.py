"""Page of tool call and reasoning parsers by name."""

from __future__ import annotations

import re
from pathlib import Path

from builtin_plugins.chat_renderers import jinja
from core.plugin import Registered, Registry

TEMPLATES = Path(jinja.__file__).parent / "templates"
HEAD = re.compile(r"\{# (?P<model>.*): (?P<flags>--.*) #\}")
"""First line of a template: the model, and the flags that read its calls."""

INTRO = """\
# List of parsers

Names of `--tool-call-parser` and `--reasoning-parser`. See
[Parsers of model output](../extend/parsers.md) for how they work and how to write one.
"""


def parsers_page(registry: Registry) -> str:
    """Return the page as markdown."""
    parts = [INTRO]
    for title, kind in (
        ("Tool call parsers", "tool_parsers"),
        ("Reasoning parsers", "reasoning_parsers"),
    ):
        rows = [
            f"| `{found.entry.name}` | {_cell(found.entry.summary)} |\n"
            for found in _by_name(registry, kind)
        ]
        parts.append(f"## {title}\n\n| name | reads |\n| --- | --- |\n{''.join(rows)}")
    return "\n".join([*parts, _chat_templates()])


def _chat_templates() -> str:
    rows = []
    for file in sorted(TEMPLATES.glob("*.jinja")):
        if head := HEAD.match(file.read_text(encoding="utf-8")):
            rows.append(f"| `{file.stem}` | {head['model']} | `{head['flags']}` |\n")
    return (
        "## Chat templates for tools\n\n| `--chat-template` | model | with |\n"
        f"| --- | --- | --- |\n{''.join(rows)}"
    )


def _by_name(registry: Registry, kind: str) -> list[Registered]:
    return sorted(registry.entries(kind), key=lambda found: found.entry.name)


def _cell(text: str) -> str:
    for char in "\\<>|[]_`*":
        text = text.replace(char, f"\\{char}")
    return text
