"""Prompts in the forms users write them. Knows no tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from core.errors import InvalidRequest

PROMPT_KEYS: Final = ("prompt", "prompt_token_ids", "cache_salt")
"""Of a prompt dict; more of them are what admission extensions read."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that was read."""

    token_ids: list[int]
    text: str | None = None
    cache_salt: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What stood in its dict for admission extensions."""


def as_list(prompts: Any) -> list[Any]:
    """Return a list of prompts: a text, ids or a dict alone is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, (bytes, bytearray)) or not isinstance(prompts, Iterable):
        raise InvalidRequest("prompts", f"must be a prompt or a list of prompts, not {prompts!r}.")
    listed = list(prompts)
    return [listed] if listed and isinstance(listed[0], int) else listed


def token_ids_of(value: Any) -> list[int]:
    """Return token ids as a list. Raises `InvalidRequest` for anything else."""
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(
            "prompt", f"must be a text, token ids or a dict of them, not {type(value).__name__}."
        )
    return list(value)
