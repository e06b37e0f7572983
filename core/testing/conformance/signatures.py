"""Whether a method can be called as a contract calls it."""

from __future__ import annotations

import inspect
from typing import Any


def assert_takes(target: type, name: str, expected: Any) -> None:
    """Bind the contract's own arguments to the given method.

    Raises `AssertionError` naming both signatures.
    """
    own = list(inspect.signature(expected).parameters.values())[1:]
    keywords = {p.name: None for p in own if p.kind is p.KEYWORD_ONLY}
    static = isinstance(inspect.getattr_static(target, name), (staticmethod, classmethod))
    positional = [None] * (len(own) - len(keywords) + (0 if static else 1))
    given = inspect.signature(getattr(target, name))
    try:
        given.bind(*positional, **keywords)
    except TypeError as error:
        raise AssertionError(
            f"{target.__name__}.{name}({', '.join(given.parameters)}) cannot be called as the "
            "contract's "
            f"{name}({', '.join(p.name for p in own)}): {error}."
        ) from error
