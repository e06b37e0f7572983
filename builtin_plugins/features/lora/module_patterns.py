"""PEFT's patterns of module names, matched in bounded time: an adapter's config is untrusted.

A key of `rank_pattern` is a suffix of a module's name, or a regular expression for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from builtin_plugins.features.lora.adapter_file import BadAdapter
from builtin_plugins.model_sources.api import Pattern
from core.api import ModelError

MAX_EXPRESSIONS: Final = 256
"""Keys that are no plain names; each is matched with every module."""
MAX_EXPRESSION_LENGTH: Final = 1000
"""In characters."""
_PLAIN: Final = re.compile(r"[\w.]+", re.ASCII)


class ModulePatterns:
    """Finds the first key that fits a module. Raises `BadAdapter` for one that cannot be read."""

    def __init__(self, field: str, keys: Iterable[str]) -> None:
        """`field`: the setting's name, for errors."""
        self._keys = list(keys)
        self._plain: dict[str, int] = {}
        self._expressions: list[tuple[int, Pattern]] = []
        for index, key in enumerate(self._keys):
            if _PLAIN.fullmatch(key):
                self._plain.setdefault(key, index)
            else:
                self._expressions.append((index, expression(field, rf"(.*\.)?({key})$")))
        if len(self._expressions) > MAX_EXPRESSIONS:
            raise BadAdapter(
                f"{field}: got {len(self._expressions)} regular expressions; expected up to "
                f"{MAX_EXPRESSIONS}. Name the modules instead."
            )

    def find(self, module: str) -> str | None:
        """Return the first key that is a suffix of a name or a regex for it, as in PEFT."""
        found = [self._plain[name] for name in _suffixes(module) if name in self._plain]
        first = min(found, default=len(self._keys))
        for index, pattern in self._expressions:
            if index >= first:
                break
            if matches(pattern, module):
                return self._keys[index]
        return self._keys[first] if found else None


def expression(field: str, text: str) -> Pattern:
    """Return a regular expression of an adapter's config. Raises `BadAdapter`."""
    if len(text) > MAX_EXPRESSION_LENGTH:
        raise BadAdapter(
            f"{field}: got an expression of {len(text)} characters; expected up to "
            f"{MAX_EXPRESSION_LENGTH}. Name the modules instead."
        )
    try:
        return Pattern(text, field)
    except ModelError as error:
        raise BadAdapter(str(error)) from error


def matches(pattern: Pattern, module: str) -> bool:
    """Return whether an expression fits a whole name. Raises `BadAdapter`."""
    try:
        return pattern.fullmatch(module)
    except ModelError as error:
        raise BadAdapter(str(error)) from error


def _suffixes(module: str) -> Iterable[str]:
    """Yield a name and what follows each of its dots."""
    yield module
    for dot in re.finditer(r"\.", module):
        yield module[dot.end() :]
