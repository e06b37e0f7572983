"""Compares a stub of a library with the signatures of its release, without the library.

Tests replace libraries that need a device. Such a stub must take nothing that the library does not.
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.errors import did_you_mean


def read_released(file: Path) -> dict[str, Any]:
    """Return the functions and classes of a stub file, which has signatures only."""
    return runpy.run_path(str(file))


def assert_release_takes(stub: Callable[..., Any], released: Callable[..., Any]) -> None:
    """Raise `AssertionError` if a call that the stub takes means something else to the release."""
    ours = inspect.signature(stub).parameters
    theirs = inspect.signature(released).parameters
    name = getattr(released, "__qualname__", str(released))
    unknown = [each for each in ours if each not in theirs]
    assert not unknown, f"{name} has no {unknown[0]!r}{did_you_mean(unknown[0], list(theirs))}."
    positional = [each.name for each in ours.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    expected = list(theirs)[: len(positional)]
    assert positional == expected, f"{name} takes {expected} by position; the stub {positional}."
    needed = {
        each.name
        for each in theirs.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }
    assert needed <= set(ours), f"{name} needs {sorted(needed - set(ours))}."
