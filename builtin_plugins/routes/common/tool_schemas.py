"""The schemas that forced tool calls are held to: best effort unless a tool is strict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builtin_plugins.grammar_backends.api import (
    BudgetError,
    CompileBudget,
    UnsupportedSchemaError,
    check_schema,
    enforceable,
)
from builtin_plugins.routes.common.tools import named_tool
from core.api import InvalidRequest


def enforced_tools(
    tools: Sequence[Mapping[str, Any]], choice: Any, budget: CompileBudget | None = None
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the tools that a forced call may use, with schemas that can be held.

    Also returns the paths of what is left out of the schemas. Raises `InvalidRequest` for a strict
    tool if its schema cannot be held as it is, and for schemas beyond the budget, which is the
    default one unless given. Takes milliseconds for each tool.
    """
    try:
        return _enforced(tools, named_tool(choice), budget or CompileBudget())
    except BudgetError as error:
        raise InvalidRequest(
            "tools", f"got {error}; expected fewer or simpler ones. Remove tools, or force one."
        ) from error


def _enforced(
    tools: Sequence[Mapping[str, Any]], named: str | None, budget: CompileBudget
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    found = []
    left_out: list[str] = []
    for index, tool in enumerate(tools):
        function = tool["function"]
        if named not in (None, function["name"]):
            continue
        field = f"tools[{index}].function.parameters"
        parameters = {"properties": {}, **(function.get("parameters") or {}), "type": "object"}
        if function.get("strict") is True:
            try:
                check_schema(parameters, budget)
            except UnsupportedSchemaError as error:
                raise InvalidRequest(
                    field, f"cannot be held, and the tool is strict: {error}."
                ) from error
        else:
            parameters, paths = enforceable(parameters, budget)
            left_out += [f"tools.{index}.function.parameters.{path}" for path in paths]
        found.append({**tool, "function": {**function, "parameters": parameters}})
    return found, tuple(left_out)
