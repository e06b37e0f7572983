"""Parses `--plugins`. Knows no installed plugins."""

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
class Selector:
    """One item of `--plugins`: a named plugin, local file or local module."""

    name: str
    version: SpecifierSet
    written: str
    """The item as the user wrote it."""


@dataclass(frozen=True, slots=True)
class Selection:
    """All items of `--plugins`."""

    nothing: bool
    """True: the builtins are not loaded by default."""
    exact: tuple[Selector, ...]
    """Plain names; with any of them no other third-party plugin is loaded."""
    added: tuple[Selector, ...]
    """`+NAME`: loaded in addition."""
    blocked: tuple[Selector, ...]
    """`no:NAME`: not loaded."""


def parse_selection(words: Iterable[str]) -> Selection:
    """Return the selection; each word may hold several items, separated by
    commas.

    Raises `ConfigError` naming an invalid item.
    """
    nothing = False
    signed: dict[str, list[Selector]] = {"": [], "+": [], "no:": []}
    for word in _split(words):
        if word == NONE:
            nothing = True
            continue
        sign, selector = _read(word)
        signed[sign].append(selector)
    return Selection(nothing, tuple(signed[""]), tuple(signed["+"]), tuple(signed["no:"]))


def _split(words: Iterable[str]) -> Iterator[str]:
    """Split at commas, except inside a version such as `NAME>=1.2,<2`."""
    parts: list[str] = []
    for part in (part.strip() for word in words for part in word.split(",")):
        if part and part[0] in "<>=!" and parts:
            parts[-1] += "," + part
        elif part:
            parts.append(part)
    yield from parts


def _read(word: str) -> tuple[str, Selector]:
    sign = next((s for s in ("+", "no:") if word.startswith(s)), "")
    bare = word.removeprefix(sign).strip()
    if looks_like_file(bare):
        return sign, Selector(bare, SpecifierSet(), word)
    match = _WORD.fullmatch(bare)
    try:
        if match is None or (sign == "no:" and match["version"]):
            raise InvalidSpecifier
        return sign, Selector(match["name"], SpecifierSet(match["version"] or ""), word)
    except InvalidSpecifier:
        raise ConfigError(
            f"--plugins {word!r} is not understood; write NAME, 'NAME>=1.2', +NAME, no:NAME, none, "
            "./file.py or pkg.module."
        ) from None
