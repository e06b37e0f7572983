"""Tools of a chat request: which may be called, which must, and what a forced call looks like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.api import InvalidRequest, ParseRequest, Reading, Scan, ToolFormat

MAX_TOOLS: Final = 128
"""As many as OpenAI takes."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_.\-]{1,64}")


def check_tools(tools: Sequence[Mapping[str, Any]], choice: Any) -> None:
    """Raise `InvalidRequest` for tools that cannot be shown or called, and for a choice that is none of theirs."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest("tools", f"holds {len(tools)} tools, at most {MAX_TOOLS} are allowed.")
    for index, tool in enumerate(tools):
        _check_tool(f"tools[{index}]", tool)
    named = named_tool(choice)
    if choice is None or choice in ("none", "auto"):
        return
    if named is None and choice != "required":
        raise InvalidRequest("tool_choice", f"must be 'none', 'auto', 'required' or a function, not {choice!r:.200}.")
    if not tools:
        raise InvalidRequest("tool_choice", "asks for a tool, but `tools` is empty.")
    names = [tool["function"]["name"] for tool in tools]
    if named is not None and named not in names:
        raise InvalidRequest("tool_choice", f"names {named!r:.100}, which is not among the tools: {', '.join(names)}.")


def _check_tool(field: str, tool: Mapping[str, Any]) -> None:
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise InvalidRequest(field, "must be of the form {'type': 'function', 'function': {'name': ...}}.")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{field}.function.name", "must have 1 to 64 letters, digits, dots, dashes or underscores."
        )
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequest(f"{field}.function.parameters", "must be a JSON schema object.")


def named_tool(choice: Any) -> str | None:
    """Return the function a choice names, or None."""
    if not isinstance(choice, Mapping) or choice.get("type", "function") != "function":
        return None
    name = choice["function"].get("name") if isinstance(choice.get("function"), Mapping) else choice.get("name")
    return name if isinstance(name, str) else None


def forced_schema(tools: Sequence[Mapping[str, Any]], choice: Any, *, parallel: bool) -> dict[str, Any] | None:
    """Return the JSON schema that makes a forced call valid by construction; None where nothing is forced."""
    named = named_tool(choice)
    if named is None and choice != "required":
        return None
    schemas = {tool["function"]["name"]: dict(tool["function"].get("parameters") or _ANYTHING) for tool in tools}
    if named is not None:
        return schemas[named]
    shared = {key: schema.pop(key) for schema in schemas.values() for key in ("$defs", "definitions") if key in schema}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in schemas.items()
    ]
    most = {} if parallel else {"maxItems": 1}
    return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}, **shared}


_ANYTHING: Final[dict[str, Any]] = {"type": "object", "properties": {}}


def forced_format(choice: Any, family: ToolFormat | None) -> ToolFormat:
    """Return how the answer to `forced_schema` is read; ids are those of the model's family."""
    named = named_tool(choice)

    def read_arguments(scan: Scan, request: ParseRequest) -> Reading:
        with scan.attempt():
            scan.call(named, (yield from scan.object()))

    read = _read_list if named is None else read_arguments
    return ToolFormat(read) if family is None else ToolFormat(read, call_id=family.call_id)


def _read_list(scan: Scan, request: ParseRequest) -> Reading:
    more = yield from scan.text("[")  # belongs to the first call: cut off, both are text
    while more:
        with scan.attempt():
            call = yield from scan.object()
            scan.call(call.get("name"), call.get("arguments"))
        more = (yield from scan.maybe(",", "]")) == ","
