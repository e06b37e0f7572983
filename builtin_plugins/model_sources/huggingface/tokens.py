"""Checks that token ids in a model's settings are within its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from core.api import ModelError
from core.model_spec.facts import stated_vocabulary

_FIELDS: Final = (
    "eos_token_id",
    "bos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
)
_RULES: Final = ("begin_suppress_tokens", "forced_eos_token_id", "suppress_tokens")
"""Fields of generation_config.json that forbid or force tokens of every request."""
NONE: Final = -1
"""Value for "no such token" in old files."""


def check_tokens(
    stated: Mapping[str, Any], generation: Mapping[str, Any], path: Path, where: Path
) -> None:
    """Raise `ModelError` for a token id outside of the vocabulary, with file and field.

    `stated` is the content of `path` with overrides, `generation` that of `where`. A config without
    a vocabulary size is not checked.
    """
    size = stated_vocabulary(stated)
    if size is None:
        return
    for name, token in _named(stated):
        if not _is_token(token, size):
            cure = f"""Correct it, or set it with --hf-overrides '{{"{name}": null}}'."""
            raise ModelError(f"{path}: {_outside(name, token, size)} {cure}")
    for name, token in _named(generation):
        if not _is_token(token, size):
            raise ModelError(
                f"{where}: {_outside(name, token, size)} Correct it, or leave the field out."
            )


def _named(fields: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name in _FIELDS:
        value = fields.get(name)
        for token in value if isinstance(value, list) else [value]:
            if type(token) is int:  # other types are rejected where the field is read
                yield name, token


def _is_token(token: int, size: int) -> bool:
    return token == NONE or 0 <= token < size


def _outside(name: str, token: int, size: int) -> str:
    return (
        f"{name} is {token}, which is no token of the vocabulary: it has {size}, from 0 to "
        f"{size - 1}."
    )


def read_token_rules(generation: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Return which tokens are forbidden or forced for every request.

    Raises `ModelError` for values that are no token ids. As in transformers, an end token is no bad
    word.
    """
    rules = {name: generation[name] for name in _RULES if generation.get(name) is not None}
    for name, value in rules.items():
        _check_ids(name, value if isinstance(value, list) else [value], where)
    words = generation.get("bad_words_ids")
    if words is None:
        return rules
    if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
        raise ModelError(
            f"{where}: bad_words_ids: got {words!r:.100}; expected a list of lists of token ids."
        )
    for word in words:
        _check_ids("bad_words_ids", word, where)
    ends = generation.get("eos_token_id")
    single = ends if isinstance(ends, list) else [ends]
    return {**rules, "bad_words_ids": [word for word in words if word not in [[e] for e in single]]}


def _check_ids(name: str, tokens: list[Any], where: Path) -> None:
    if any(type(token) is not int for token in tokens):
        raise ModelError(f"{where}: {name}: got {tokens!r:.100}; expected token ids. Correct it.")
