"""The part of a JSON schema that a grammar can hold, and what is left out of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

from builtin_plugins.grammar_backends.schema_compiler.compiler import compile_schema
from builtin_plugins.grammar_backends.schema_compiler.document import (
    CompileTimeError,
    UnsupportedSchemaError,
)

_MAX_REMOVED: Final = 16
"""Maximum number of keywords to leave out one by one; beyond that, any object is allowed."""


MAX_COMPILATIONS: Final = 1024
"""Default number of compilations for one request: 128 tools with 7 odd keywords each."""
MAX_CPU_S: Final = 2.0
"""Default CPU time of all compilations for one request, in seconds."""


class BudgetError(Exception):
    """The schemas of a request exceed its budget."""


class CompileBudget:
    """The compilations of one request, which run in one thread."""

    def __init__(self, count: int = MAX_COMPILATIONS, cpu_s: float = MAX_CPU_S) -> None:
        self._count = count
        self._cpu_s = cpu_s
        self._num_compiled = 0
        self._used_s = 0.0

    def compile(self, schema: Any) -> None:
        """Compile a schema.

        Raises `UnsupportedSchemaError`, and `BudgetError` once the budget is used up.
        """
        if self._num_compiled == self._count:
            raise BudgetError(f"schemas that need over {self._count} compilations")
        self._num_compiled += 1
        start_s = time.thread_time()
        try:
            compile_schema(schema, max_cpu_s=self._cpu_s - self._used_s)
        except CompileTimeError as error:
            raise BudgetError(f"schemas that compile for over {self._cpu_s:g} s") from error
        finally:
            self._used_s += time.thread_time() - start_s


def check_schema(schema: Any, budget: CompileBudget) -> None:
    """Raise `UnsupportedSchemaError` for a schema that cannot be held exactly, or `BudgetError`."""
    budget.compile(schema)


def enforceable(schema: dict[str, Any], budget: CompileBudget) -> tuple[dict[str, Any], list[str]]:
    """Return an object schema without what cannot be held, and the paths of what is left out.

    Raises `BudgetError`.
    """
    rest = schema
    left_out: list[str] = []
    for _ in range(_MAX_REMOVED):
        try:
            budget.compile(rest)
        except UnsupportedSchemaError as error:
            if rest is schema:
                rest = deepcopy(schema)
            removed = [*_remove(rest, error)]
            if not removed:
                left_out.append(error.keyword)
                break
            left_out += removed
        else:
            return rest, left_out
    return {"type": "object", "additionalProperties": True}, left_out


def broken_keywords(schema: dict[str, Any], value: str) -> list[str]:
    """Return the paths of the keywords of a schema that a JSON text does not follow.

    Takes about a tenth of a second of CPU time at most. Raises `UncheckedError`.
    """
    from builtin_plugins.grammar_backends.schema_compiler.validation import (  # faster start-up
        find_broken,
    )

    return find_broken(schema, value)


def _remove(schema: Any, error: UnsupportedSchemaError) -> Iterator[str]:
    """Remove the keyword of an error: where it says, or everywhere; yield the paths."""
    pending = [(schema, "")]
    found = []
    while pending:
        part, path = pending.pop()
        if isinstance(part, dict):
            if error.keyword in part:
                found.append((part, path))
            pending += [(value, f"{path}/{name}") for name, value in part.items()]
        elif isinstance(part, list):
            pending += [(value, f"{path}/{i}") for i, value in enumerate(part)]
    exact = [(part, path) for part, path in found if path == error.path]
    for part, path in exact or found:
        del part[error.keyword]
        yield f"{path}/{error.keyword}".removeprefix("/").replace("/", ".")
