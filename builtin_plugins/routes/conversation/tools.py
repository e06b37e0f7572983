"""Tools of a chat request: which may be called, which must, and what a forced call looks like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from core.api import (
    CallKeys,
    CallText,
    InvalidRequest,
    ParseRequest,
    Reading,
    Scan,
    StructuredOutputsParams,
    ToolFormat,
)

MAX_TOOLS: Final = 128
"""As many as OpenAI takes."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_.\-]{1,128}")


def check_tools(tools: Sequence[Mapping[str, Any]], choice: Any) -> None:
    """Raise `InvalidRequest` for tools that cannot be shown or called, and for a choice that is
    none of theirs.
    """
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest("tools", f"holds {len(tools)} tools, at most {MAX_TOOLS} are allowed.")
    for index, tool in enumerate(tools):
        _check_tool(f"tools[{index}]", tool)
    named = named_tool(choice)
    if choice is None or choice in ("none", "auto"):
        return
    if named is None and choice != "required":
        raise InvalidRequest(
            "tool_choice", f"must be 'none', 'auto', 'required' or a function, not {choice!r:.200}."
        )
    if not tools:
        raise InvalidRequest("tool_choice", "asks for a tool, but `tools` is empty.")
    names = [tool["function"]["name"] for tool in tools]
    if named is not None and named not in names:
        raise InvalidRequest(
            "tool_choice",
            f"names {named!r:.100}, which is not among the tools: {', '.join(names)}.",
        )


def _check_tool(field: str, tool: Mapping[str, Any]) -> None:
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise InvalidRequest(
            field, "must be of the form {'type': 'function', 'function': {'name': ...}}."
        )
    name = function.get("name")
    parameters = function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{field}.function.name",
            "must have 1 to 128 letters, digits, dots, dashes or underscores.",
        )
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequest(f"{field}.function.parameters", "must be a JSON schema object.")
    if parameters is not None and parameters.get("type", "object") != "object":
        raise InvalidRequest(
            f"{field}.function.parameters.type",
            f"must be 'object', not {parameters['type']!r:.80}.",
        )


def named_tool(choice: Any) -> str | None:
    """Return the function a choice names, or None."""
    if not isinstance(choice, Mapping) or choice.get("type", "function") != "function":
        return None
    name = (
        choice["function"].get("name")
        if isinstance(choice.get("function"), Mapping)
        else choice.get("name")
    )
    return name if isinstance(name, str) else None


def forced_form(
    tools: Sequence[Mapping[str, Any]],
    choice: Any,
    family: ToolFormat | None,
    special: Mapping[str, int],
    *,
    parallel: bool,
) -> StructuredOutputsParams | None:
    """Return the form that makes forced calls valid by construction; None where nothing is forced.

    Calls are written as the model's family writes them, where that is known, so that the model can
    say what it has learnt; else as a list of JSON, and a call of a named function as its arguments.
    """
    named = named_tool(choice)
    if named is None and choice != "required":
        return None
    schemas = {
        tool["function"]["name"]: _ANY_OBJECT | (tool["function"].get("parameters") or {})
        for tool in tools
    }
    text = None if family is None else family.writes
    # Compact, because a weak model may write white space without end.
    if text is None and named is not None:
        return StructuredOutputsParams(
            json=schemas[named], skip_reasoning=True, disable_any_whitespace=True
        )
    known = (
        {}
        if family is None
        else {marker: special[marker] for marker in family.markers if marker in special}
    )
    write = partial(_elements, special=known)
    text = text or _LIST
    calls = [
        _sequence(*write(text.before.replace("{name}", name)), _schema(schema), *write(text.after))
        for name, schema in schemas.items()
        if named in (None, name)
    ]
    one = calls[0] if len(calls) == 1 else {"type": "or", "elements": calls}
    more = (
        [{"type": "star", "content": _sequence(*write(text.between), one)}]
        if parallel and named is None
        else []
    )
    form = _sequence(*write(text.start), one, *more, *write(text.end))
    return StructuredOutputsParams(
        structural_tag={"type": "structural_tag", "format": form},
        skip_reasoning=True,
        disable_any_whitespace=True,
    )


_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object", "properties": {}}
_LIST: Final = CallText('{"name": "{name}", "arguments": ', "}", ", ", "[", "]")


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema}


def _elements(text: str, special: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return a fixed text, its special tokens by id: written in other tokens they would be none."""
    longest_first = sorted(special, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if special else [text]
    return [
        {"type": "token", "token": special[part]}
        if i % 2
        else {"type": "const_string", "value": part}
        for i, part in enumerate(parts)
        if part
    ]


def forced_format(choice: Any, family: ToolFormat | None) -> ToolFormat:
    """Return how the answer to `forced_form` is read; ids are those of the model's family."""
    if family is not None and family.writes is not None:
        return family
    named = named_tool(choice)

    def read_arguments(scan: Scan, request: ParseRequest) -> Reading:
        with scan.attempt():
            scan.call(named, (yield from scan.arguments(scan.begin(named or ""))))

    read = _read_list if named is None else read_arguments
    return ToolFormat(read) if family is None else ToolFormat(read, call_id=family.call_id)


def _read_list(scan: Scan, request: ParseRequest) -> Reading:
    more = yield from scan.text("[")  # belongs to the first call: cut off, both are text
    while more:
        with scan.attempt():
            call = yield from scan.object(keys=CallKeys(arguments=("arguments",)))
            scan.call(call.get("name"), call.get("arguments"))
        more = (yield from scan.maybe(",", "]")) == ","
