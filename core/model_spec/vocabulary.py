"""How many tokens a model has, as its config states it, and what a tokenizer may have beyond them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_SIZES: Final = ("vocab_size", "padded_vocab_size", "decoder_vocab_size")
_PARTS: Final = (
    "text_config",
    "llm_config",
    "language_config",
    "decoder",
    "encoder",
    "thinker_config",
)


def stated_vocabulary(stated: Mapping[str, Any]) -> int | None:
    """Return the largest size of a vocabulary that a config states, those of its parts included;
    None without one.
    """
    sizes = [value for name in _SIZES if type(value := stated.get(name)) is int and value > 0]
    for name in _PARTS:
        part = stated.get(name)
        inner = stated_vocabulary(part) if isinstance(part, Mapping) else None
        sizes += [] if inner is None else [inner]
    return max(sizes, default=None)
