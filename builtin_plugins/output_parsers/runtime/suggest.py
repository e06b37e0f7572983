"""Which parsers a chat template asks for, by texts that formats know to stand in their families'
templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builtin_plugins.output_parsers.runtime.formats import ReasoningFormat, ToolFormat


def known_formats(registry: Any, kind: str) -> dict[str, Any]:
    """Return every format of a kind by name, those to be preferred first."""
    ranked = sorted(
        registry.entries(kind), key=lambda found: (-found.entry.priority, found.entry.name)
    )
    return {found.entry.name: registry.load(found) for found in ranked}


def suggest(
    template: str, tools: Mapping[str, ToolFormat], reasoning: Mapping[str, ReasoningFormat]
) -> tuple[str | None, str | None]:
    """Return names of the tool and the reasoning parser for a chat template, each None where no
    format is known.

    Of formats whose signs are all there the one with the most to say wins, of equals the first.
    """
    return _best(template, tools), _best(template, reasoning)


def _best(
    template: str, formats: Mapping[str, ToolFormat] | Mapping[str, ReasoningFormat]
) -> str | None:
    found = {
        name: sum(map(len, form.signs))
        for name, form in formats.items()
        if form.signs and all(sign in template for sign in form.signs)
    }
    return max(found, key=found.__getitem__) if found else None
