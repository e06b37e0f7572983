"""Tools of chat completions that take a text (`"type": "custom"`): functions for the model, calls
in OpenAI's form for the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from builtin_plugins.output_parsers.api import ArgumentsPiece, CallBegun
from builtin_plugins.routes.common.free_text import TEXT_PARAMETERS, FreeText, is_plain_text
from builtin_plugins.routes.common.tools import check_tool_name
from core.api import InvalidRequest

NOT_HELD: Final = "got a grammar; expected {'type': 'text'}, since inputs are not constrained"


def as_functions(
    tools: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, Any]], frozenset[str], tuple[str, ...]]:
    """Return the tools as functions, the names of the custom ones, and the paths of formats that
    are not held.
    """
    functions: list[dict[str, Any]] = []
    names: set[str] = set()
    ignored: list[str] = []
    for index, tool in enumerate(tools):
        if tool.get("type") != "custom":
            functions.append(tool)
            continue
        given = tool.get("custom")
        if not isinstance(given, Mapping):
            raise InvalidRequest(
                f"tools[{index}]",
                "must be of the form {'type': 'custom', 'custom': {'name': ...}}.",
            )
        check_tool_name(f"tools[{index}].custom.name", given.get("name"))
        if not is_plain_text(given.get("format")):
            ignored.append(f"tools.{index}.custom.format")
        names.add(given["name"])
        described = {"description": given["description"]} if given.get("description") else {}
        function = {"name": given["name"], **described, "parameters": dict(TEXT_PARAMETERS)}
        functions.append({"type": "function", "function": function})
    return functions, frozenset(names), tuple(ignored)


def chosen_functions(
    functions: list[dict[str, Any]], choice: Any
) -> tuple[list[dict[str, Any]], Any]:
    """Return the allowed functions and the choice among them, where it names custom or allowed
    tools.
    """
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "custom":
        return functions, {"type": "function", "function": choice.get("custom")}
    if kind != "allowed_tools":
        return functions, choice
    allowed = choice.get("allowed_tools")
    listed = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise InvalidRequest("tool_choice.allowed_tools.tools", "must name at least one tool.")
    known = {_name_of(tool.get("function")): tool for tool in functions}
    found = []
    for index, each in enumerate(listed):
        named = each.get(each.get("type", "function")) if isinstance(each, Mapping) else None
        name = _name_of(named)
        if name is None or name not in known:
            raise InvalidRequest(
                f"tool_choice.allowed_tools.tools[{index}]",
                f"names {name!r:.100}, which is not among the tools.",
            )
        found.append(known[name])
    mode = allowed.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise InvalidRequest(
            "tool_choice.allowed_tools.mode", f"must be 'auto' or 'required', not {mode!r:.80}."
        )
    return found, mode


def _name_of(function: Any) -> str | None:
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def add_function_piece(calls: dict[int, dict[str, Any]], piece: CallBegun | ArgumentsPiece) -> None:
    """Add a piece of a function's call to the calls of a message or of a chunk's delta."""
    match piece:
        case CallBegun(index, name, call_id):
            function = {"name": name, "arguments": ""}
            calls[index] = {"index": index, "id": call_id, "type": "function", "function": function}
        case ArgumentsPiece(index, text):
            call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
            call["function"]["arguments"] += text


class CustomCalls:
    """The tool calls of one choice of a request with custom tools, whole or streamed."""

    def __init__(self, custom_names: frozenset[str]) -> None:
        self._custom_names = custom_names
        self._texts: dict[int, FreeText] = {}
        """Input of each open call of a custom tool, by the call's index."""

    def add_piece(
        self, calls: dict[int, dict[str, Any]], piece: CallBegun | ArgumentsPiece
    ) -> None:
        """Add a piece of a call, in the form of its tool's type, to the calls of a message or of a
        chunk's delta.
        """
        if isinstance(piece, CallBegun):
            self.end_texts(calls)
            if piece.name in self._custom_names:
                self._texts[piece.index] = FreeText()
                call = {"index": piece.index, "id": piece.id, "type": "custom"}
                calls[piece.index] = call | {"custom": {"name": piece.name, "input": ""}}
                return
        elif piece.index in self._texts:
            if added := self._texts[piece.index].add(piece.text):
                _add_input(calls, piece.index, added)
            return
        add_function_piece(calls, piece)

    def end_texts(self, calls: dict[int, dict[str, Any]]) -> None:
        """Add what the arguments of open calls hold in another form than expected."""
        for index, text in self._texts.items():
            if rest := text.end()[1]:
                _add_input(calls, index, rest)
        self._texts.clear()


def _add_input(calls: dict[int, dict[str, Any]], index: int, text: str) -> None:
    call = calls.setdefault(index, {"index": index, "custom": {"input": ""}})
    call["custom"]["input"] += text
