"""Hooks that other plugins implement, each with `@hookimpl`."""

from __future__ import annotations

from collections.abc import Sequence

from core.api import hookspec


@hookspec
def engine_acme_words(language: str) -> Sequence[str]:
    """Return words of a language; empty for an unknown one."""
    raise NotImplementedError
