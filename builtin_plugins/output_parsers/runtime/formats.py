"""What a tool or reasoning parser plugin provides: its family's syntax, as a generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from builtin_plugins.output_parsers.contract import ReasoningFormat, ToolFormat
from core.api import Registry

Format = TypeVar("Format", "ToolFormat", "ReasoningFormat")


def fit_format(form: Format, template: Mapping[str, Any] | None) -> Format:
    """Return a format for a model's `response_template`. Raises `ConfigError` if it cannot be."""
    return form if form.from_template is None else form.from_template(template)


def known_formats(registry: Registry, kind: str) -> dict[str, Any]:
    """Return every format of a kind by name, in order of preference."""
    ranked = sorted(
        registry.entries(kind), key=lambda found: (-found.entry.priority, found.entry.name)
    )
    return {found.entry.name: registry.load(found) for found in ranked}


def suggest_parsers(
    template: str, tools: Mapping[str, ToolFormat], reasoning: Mapping[str, ReasoningFormat]
) -> tuple[str | None, str | None]:
    """Return the names of the tool and the reasoning parser that fit a chat template.

    None where no format matches. Of several matches the one with the longest hints wins.
    """
    return _best(template, tools), _best(template, reasoning)


def _best(
    template: str, formats: Mapping[str, ToolFormat] | Mapping[str, ReasoningFormat]
) -> str | None:
    found = {
        name: sum(map(len, form.template_hints))
        for name, form in formats.items()
        if form.template_hints and all(hint in template for hint in form.template_hints)
    }
    return max(found, key=found.__getitem__) if found else None
