"""Page of tool call and reasoning parsers by name."""

from __future__ import annotations

from core.plugin import Registered, Registry

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
    return "\n".join(parts)


def _by_name(registry: Registry, kind: str) -> list[Registered]:
    return sorted(registry.entries(kind), key=lambda found: found.entry.name)


def _cell(text: str) -> str:
    for char in "\\<>|[]_`*":
        text = text.replace(char, f"\\{char}")
    return text
