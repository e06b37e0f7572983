"""What each word after `--plugins` asks for. Knows no installed plugin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from core.errors import ConfigError
from core.plugin.discovery import looks_like_file

NONE: Final = "none"
_WORD = re.compile(r"(?P<name>[^<>=!~\s]+)\s*(?P<version>[<>=!~].*)?")


@dataclass(frozen=True, slots=True)
class Wish:
    """One named plugin, local file or local module."""

    name: str
    version: SpecifierSet
    written: str
    """As the user spelt it."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a whole selection asks for."""

    nothing: bool
    """True: start from nothing instead of the builtins."""
    exact: tuple[Wish, ...]
    """Plain names: with any of them, no other third party is loaded."""
    added: tuple[Wish, ...]
    """`+NAME`: loaded besides whatever else is."""
    blocked: tuple[Wish, ...]
    """`no:NAME`."""


def parse_selection(words: Iterable[str]) -> Selection:
    """Read words, each of which may hold several, separated by commas.

    Raises `ConfigError` naming a bad one.
    """
    nothing = False
    signed: dict[str, list[Wish]] = {"": [], "+": [], "no:": []}
    for word in _split(words):
        if word == NONE:
            nothing = True
            continue
        sign, wish = _read(word)
        signed[sign].append(wish)
    return Selection(nothing, tuple(signed[""]), tuple(signed["+"]), tuple(signed["no:"]))


def _split(words: Iterable[str]) -> Iterator[str]:
    """Split at commas, keeping the commas of `NAME>=1.2,<2` together with their name."""
    parts: list[str] = []
    for part in (part.strip() for word in words for part in word.split(",")):
        if part and part[0] in "<>=!" and parts:
            parts[-1] += "," + part
        elif part:
            parts.append(part)
    yield from parts


def _read(word: str) -> tuple[str, Wish]:
    sign = next((s for s in ("+", "no:") if word.startswith(s)), "")
    bare = word.removeprefix(sign).strip()
    if looks_like_file(bare):
        return sign, Wish(bare, SpecifierSet(), word)
    match = _WORD.fullmatch(bare)
    try:
        if match is None or (sign == "no:" and match["version"]):
            raise InvalidSpecifier
        return sign, Wish(match["name"], SpecifierSet(match["version"] or ""), word)
    except InvalidSpecifier:
        raise ConfigError(
            f"--plugins {word!r} is not understood; write NAME, 'NAME>=1.2', +NAME, no:NAME, none, "
            "./file.py or pkg.module."
        ) from None
