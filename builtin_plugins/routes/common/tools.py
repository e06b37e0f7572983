"""Tools of a chat request: validation, and the constraint and format of forced calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from builtin_plugins.output_parsers.api import (
    CallKeys,
    CallText,
    OutputReader,
    ParseRequest,
    Reading,
    ToolFormat,
)
from core.api import InvalidRequest
from core.api.sampling import StructuredOutputsParams

MAX_TOOLS: Final = 128
"""Largest number of tools in a request, as in OpenAI's API."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_.\-]{1,128}")


def check_tools(tools: Sequence[Mapping[str, Any]], choice: Any) -> None:
    """Raise `InvalidRequest` for invalid tools, and for a choice outside of them."""
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
        raise InvalidRequest("tool_choice", "requires a tool, but `tools` is empty.")
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
    check_tool_name(f"{field}.function.name", function.get("name"))
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequest(f"{field}.function.parameters", "must be a JSON schema object.")
    kind = "object" if parameters is None else parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise InvalidRequest(
            f"{field}.function.parameters.type",
            f"must be 'object', not {kind!r:.80}.",
        )


def check_tool_name(field: str, name: Any) -> None:
    """Raise `InvalidRequest` for a name that no tool may have."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            field, "must have 1 to 128 letters, digits, dots, dashes or underscores."
        )


def named_tool(choice: Any) -> str | None:
    """Return the function a choice names, or None."""
    if not isinstance(choice, Mapping) or choice.get("type", "function") != "function":
        return None
    function = choice.get("function")
    holder = function if isinstance(function, Mapping) else choice
    name = holder.get("name")
    return name if isinstance(name, str) else None


def forced_call_constraint(
    tools: Sequence[Mapping[str, Any]],
    choice: Any,
    family: ToolFormat | None,
    special: Mapping[str, int],
    *,
    parallel: bool,
) -> StructuredOutputsParams | None:
    """Return the constraint that makes forced calls valid; None if the choice forces none.

    Calls have the format of the model's family, if known, because the model has learnt it.
    Otherwise they are a JSON list, and a call of a named function is its arguments.
    """
    named = named_tool(choice)
    if named is None and choice != "required":
        return None
    schemas = {
        tool["function"]["name"]: _ANY_OBJECT | (tool["function"].get("parameters") or {})
        for tool in tools
    }
    text = None if family is None else family.writes
    # No whitespace: a weak model may write it endlessly.
    if text is None and named is not None:
        return StructuredOutputsParams(json=schemas[named], disable_any_whitespace=True)
    markers = () if family is None else family.markers
    known = {marker: special[marker] for marker in markers if marker in special}
    write = partial(_tag_elements, special=known)
    text = text or _LIST
    chosen = {name: schema for name, schema in schemas.items() if named in (None, name)}
    form = _calls(text, chosen, write, repeats=parallel and named is None)
    return StructuredOutputsParams(
        structural_tag={"type": "structural_tag", "format": form}, disable_any_whitespace=True
    )


_CHARACTER: Final = {"type": "regex", "pattern": r"[\s\S]"}
_FREE_OBJECT: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object", "properties": {}}
_LIST: Final = CallText('{"name": "{name}", "arguments": ', "}", ", ", "[", "]")


def form_or_calls(
    form: StructuredOutputsParams,
    tools: Sequence[Mapping[str, Any]],
    family: ToolFormat,
    special: Mapping[str, int],
    *,
    parallel: bool,
) -> StructuredOutputsParams:
    """Return the constraint of an answer that has a form or is calls, as the model decides.

    Returns `form` itself if it is a structural tag, or if the family states no start of its calls.
    """
    element = _form_element(form)
    calls = _free_calls(tools, family, special, parallel=parallel)
    if element is None or calls is None:
        return form
    either = {"type": "or", "elements": [element, calls]}
    return StructuredOutputsParams(
        structural_tag={"type": "structural_tag", "format": either},
        disable_fallback=form.disable_fallback,
        disable_any_whitespace=form.disable_any_whitespace,
        disable_additional_properties=form.disable_additional_properties,
        whitespace_pattern=form.whitespace_pattern,
        skip_reasoning=form.skip_reasoning,
    )


def _form_element(form: StructuredOutputsParams) -> dict[str, Any] | None:
    """Return a constraint as an element of a structural tag."""
    match form.kind:
        case "json":
            schema = msgspec.json.decode(form.json) if isinstance(form.json, str) else form.json
            return _schema(schema or {})
        case "json_object":
            return _schema(_FREE_OBJECT)
        case "regex":
            return {"type": "regex", "pattern": form.regex}
        case "grammar":
            return {"type": "grammar", "grammar": form.grammar}
        case "choice":
            texts = [{"type": "const_string", "value": text} for text in form.choice or ()]
            return texts[0] if len(texts) == 1 else {"type": "or", "elements": texts}
    return None


def _free_calls(
    tools: Sequence[Mapping[str, Any]],
    family: ToolFormat,
    special: Mapping[str, int],
    *,
    parallel: bool,
) -> dict[str, Any] | None:
    """Return the element of calls that the model is free to make, with any arguments."""
    names = [tool["function"]["name"] for tool in tools]
    known = {marker: special[marker] for marker in family.markers if marker in special}
    write = partial(_tag_elements, special=known)
    text = family.writes
    if text is not None:
        return _calls(text, dict.fromkeys(names, _FREE_OBJECT), write, repeats=parallel)
    starts = {begin.replace("{name}", name): None for begin in family.begins for name in names}
    if not starts:
        return None
    begins = [_sequence(*write(start)) for start in starts]
    tokens = [{"type": "token", "token": token} for token in known.values()]
    rest: dict[str, Any] = {"type": "any_text"}
    if tokens:  # free text has no special tokens
        rest = {"type": "star", "content": _either([_CHARACTER, *tokens])}
    return _sequence(_either(begins), rest)


def _calls(
    text: CallText,
    schemas: Mapping[str, Mapping[str, Any]],
    write: Callable[[str], list[dict[str, Any]]],
    *,
    repeats: bool,
) -> dict[str, Any]:
    """Return the element of one call, or several if `repeats`, of tools by name."""
    calls = [
        _sequence(*write(text.before.replace("{name}", name)), _schema(schema), *write(text.after))
        for name, schema in schemas.items()
    ]
    one = _either(calls)
    more = []
    if repeats:
        more = [{"type": "star", "content": _sequence(*write(text.between), one)}]
    return _sequence(*write(text.start), one, *more, *write(text.end))


def _either(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema}


def _tag_elements(text: str, special: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the elements of a fixed text, with special tokens by id instead of by spelling."""
    longest_first = sorted(special, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if special else [text]
    return [
        {"type": "token", "token": special[part]}
        if i % 2
        else {"type": "const_string", "value": part}
        for i, part in enumerate(parts)
        if part
    ]


def forced_call_format(choice: Any, family: ToolFormat | None) -> ToolFormat:
    """Return the format of answers under `forced_call_constraint`, with the family's call ids."""
    if family is not None and family.writes is not None:
        return family
    named = named_tool(choice)

    def read_arguments(reader: OutputReader, request: ParseRequest) -> Reading:
        with reader.attempt():
            reader.add_call(
                named, (yield from reader.read_arguments(reader.begin_call(named or "")))
            )

    read = _read_list if named is None else read_arguments
    return ToolFormat(read) if family is None else ToolFormat(read, call_id=family.call_id)


def form_or_calls_format(family: ToolFormat) -> ToolFormat:
    """Return the format of answers under `form_or_calls`: what starts like no call is content."""
    begins = family.begins
    if family.writes is not None:
        begins = (f"{family.writes.start}{family.writes.before}",)
    texts = tuple(begin.partition("{name}")[0] for begin in begins)

    def read(reader: OutputReader, request: ParseRequest) -> Reading:
        begun = yield from reader.skip_optional(*texts)
        if begun is not None:
            reader.unread(begun)
            yield from family.read(reader, request)

    return replace(family, read=read)


def _read_list(reader: OutputReader, request: ParseRequest) -> Reading:
    more = yield from reader.content_until_call(
        "["
    )  # part of the first call: if cut off, both are text
    while more:
        with reader.attempt():
            call = yield from reader.read_object(keys=CallKeys(arguments=("arguments",)))
            reader.add_call(call.get("name"), call.get("arguments"))
        more = (yield from reader.skip_optional(",", "]")) == ","
