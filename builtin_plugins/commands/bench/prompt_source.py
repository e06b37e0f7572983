"""Sources of random prompts: token ids if a tokenizer is available, else common words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from core.api import ConfigError

_TEXT: Final = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem "
    "hand part place case week company system program question work number night point home water "
    "room mother "
    "area money story fact month lot right study book eye job word business issue side kind head "
    "house service "
    "friend father power hour game line end member law car city name team minute idea body back "
    "parent face level "
    "office door health person art war history party result change morning reason research girl "
    "guy moment air "
    "teacher"
)
WORDS: Final = tuple(_TEXT.split())
"""Common words; each is one token in usual vocabularies."""

Prompt = str | list[int]
Encode = Callable[[str], list[int]]
Decode = Callable[[list[int]], str]


class PromptSource(Protocol):
    """A source of random prompts."""

    def draw(self, rng: Random, count: int) -> list[Any]:
        """Return random units."""

    def prompt(self, units: list[Any]) -> Prompt:
        """Return units as a prompt."""

    def count(self, text: str) -> int:
        """Return the token count of a text, exact if possible."""


class Words:
    """Words, assumed to be one token each."""

    def draw(self, rng: Random, count: int) -> list[str]:
        """Return random words."""
        return rng.choices(WORDS, k=count)

    def prompt(self, units: list[str]) -> str:
        """Return them as a text."""
        return " ".join(units)

    def count(self, text: str) -> int:
        """Return the number of words."""
        return len(text.split())


class Tokens:
    """Exact token counts: random words, tokenized and cut to length."""

    def __init__(self, encode: Encode, decode: Decode, *, as_text: bool) -> None:
        self._encode = encode
        self._decode = decode
        self._as_text = as_text

    def draw(self, rng: Random, count: int) -> list[int]:
        """Return the ids of random words."""
        return self._encode(" ".join(rng.choices(WORDS, k=count)))[:count] if count else []

    def prompt(self, units: list[int]) -> Prompt:
        """Return token ids, or their text for APIs without token ids."""
        return self._decode(units) if self._as_text else units

    def count(self, text: str) -> int:
        """Return the number of tokens."""
        return len(self._encode(text))


def tokens_from_file(name: str, *, as_text: bool) -> Tokens:
    """Return a source for a tokenizer: a folder, a tokenizer.json, or a hub id.

    Raises `ConfigError`.
    """
    from tokenizers import Tokenizer  # lazy: only with --tokenizer

    path = Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer: Any = (
            Tokenizer.from_file(str(path)) if path.is_file() else Tokenizer.from_pretrained(name)
        )
    except Exception as error:
        raise ConfigError(f"--tokenizer {name}: {error}") from error

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return Tokens(encode, tokenizer.decode, as_text=as_text)
