"""Thoughts as the checkpoint's own response template describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final

from builtin_plugins.output_parsers.reasoning.think import form, read_none
from core.api import ConfigError, ReasoningFormat, read_response_template


def described(template: Mapping[str, Any] | None) -> ReasoningFormat:
    """Return the format that a checkpoint's template describes.

    Raises `ConfigError` for what is not read here.
    """
    found = read_response_template(template)
    if found.thinking is None:
        raise ConfigError(
            "response_template.fields.thinking is missing: leave out --reasoning-parser, or name "
            "the model family's own "
            "instead of hf."
        )
    starts, ends = zip(*product(found.thinking.texts, found.thinking.closes), strict=True)
    tags = (*starts, *ends)
    made = form(
        starts=starts,
        ends=ends,
        begun=found.thinking.begun,
        again=True,
        calls=found.tool_calls.texts if found.tool_calls else (),
        answer=tuple(text for text in found.around_content if text not in tags),
        dropped=tuple(text for text in found.dropped if text not in tags),
    )
    return replace(made, markers=found.markers, signs=())


HF: Final = ReasoningFormat(read_none, described=described)
