"""Tools of a Responses request: shown to the model as functions, and its calls told in the form of
the tool's type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from builtin_plugins.routes.conversation.tools import MAX_TOOLS
from builtin_plugins.routes.responses.fields import Tool, ToolChoice
from core.api import InvalidRequest

LEFT_OUT: Final = frozenset({"image_generation", "tool_search", "web_search", "web_search_preview"})
"""Tools of OpenAI's servers that Codex offers to every model: they are left out, and named as
ignored.
"""
_FREE: Final = '{"input": "'
_STRING: Final = re.compile(r'(?:[^"\\]|\\.)*+', re.DOTALL)
_TEXT: Final = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""What a tool that takes free text is called with: every family can write that."""


@dataclass(frozen=True, slots=True)
class Known:
    """A tool as the client knows it."""

    type: str
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a request."""

    functions: list[dict[str, Any]]
    """As chat templates read them."""
    known: Mapping[str, Known]
    """The client's tools by the names that the model has for them."""
    choice: Any
    """None, `auto`, `none`, `required`, or a function, as in chat completions."""
    ignored: tuple[str, ...] = ()
    """Places of tools that were left out."""

    @classmethod
    def of(cls, tools: Sequence[Tool], choice: str | ToolChoice) -> Toolbox:
        """Read tools and the choice among them.

        Raises `InvalidRequest` for those that cannot be served.
        """
        functions: list[dict[str, Any]] = []
        known: dict[str, Known] = {}
        ignored: list[str] = []
        for i, tool in enumerate(tools):
            if len(functions) > MAX_TOOLS:
                break  # which is refused with all others that are too many
            if tool.type in LEFT_OUT:
                ignored.append(f"tools.{i}")
            for inner, meant in _meant(tool, f"tools[{i}]"):
                shown = shown_name(meant.name, meant.namespace)
                known[shown] = meant
                functions.append({"type": "function", "function": _function(shown, inner)})
        return cls(functions, known, None, tuple(ignored)).chosen(choice)

    def chosen(self, choice: str | ToolChoice) -> Toolbox:
        """Return the tools as a choice leaves them."""
        if isinstance(choice, str):
            return self._with(choice if self.functions or choice == "required" else None)
        if choice.type in ("function", "custom"):
            return self._with(
                {"type": "function", "function": {"name": self._shown("tool_choice", choice.name)}}
            )
        if choice.type != "allowed_tools":
            raise InvalidRequest(
                "tool_choice.type",
                f"must be function, custom or allowed_tools, not {choice.type!r}.",
            )
        allowed = [each for each in choice.tools or () if each.type not in LEFT_OUT]
        if not 0 < len(allowed) <= MAX_TOOLS:
            raise InvalidRequest(
                "tool_choice.tools", f"must name 1 to {MAX_TOOLS} tools that are served here."
            )
        names = {
            self._shown(f"tool_choice.tools[{i}]", each.name) for i, each in enumerate(allowed)
        }
        functions = [each for each in self.functions if each["function"]["name"] in names]
        return Toolbox(functions, self.known, choice.mode or "auto", self.ignored)

    def _with(self, choice: Any) -> Toolbox:
        return Toolbox(self.functions, self.known, choice, self.ignored)

    def _shown(self, field: str, name: str | None) -> str:
        for shown, known in self.known.items():
            if name in (shown, known.name):
                return shown
        raise InvalidRequest(
            f"{field}.name",
            f"names {name!r:.100}, which is not among the tools: {', '.join(self.known)}.",
        )


def _meant(tool: Tool, where: str) -> list[tuple[Tool, Known]]:
    """Return the tools that one entry of the list stands for."""
    if tool.type in LEFT_OUT:
        return []
    if tool.type not in ("function", "custom", "namespace"):
        raise InvalidRequest(
            f"{where}.type",
            f"{tool.type[:80]!r} is not served: tools are run by the client; give a 'function' or "
            "a 'custom' tool.",
        )
    if not tool.name:
        raise InvalidRequest(f"{where}.name", "is missing.")
    if tool.type != "namespace":
        return [(tool, Known(tool.type, tool.name))]
    found = []
    for i, given in enumerate(tool.tools or ()):
        try:
            inner = msgspec.convert(given, Tool)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{where}.tools[{i}]", f"is no tool: {error}.") from error
        if inner.type not in ("function", "custom") or not inner.name:
            raise InvalidRequest(
                f"{where}.tools[{i}]", "must be a function or a custom tool with a name."
            )
        found.append((inner, Known(inner.type, inner.name, tool.name)))
    return found


def _function(shown: str, tool: Tool) -> dict[str, Any]:
    parameters = (
        _TEXT if tool.type == "custom" else tool.parameters or {"type": "object", "properties": {}}
    )
    described = {"description": tool.description} if tool.description else {}
    return {"name": shown, **described, "parameters": parameters}


class FreeText:
    """What a tool of free text is called with, out of the pieces of its arguments."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._said: list[str] = []
        self._open = False

    def take(self, piece: str) -> str:
        """Return the text that a piece brings; pieces hold whole escapes."""
        self._pieces.append(piece)
        if len(self._pieces) == 1 and piece.startswith(_FREE):
            piece = piece.removeprefix(_FREE)
            self._open = True
        if not self._open:
            return ""
        found = _STRING.match(piece)
        body = found[0] if found else ""
        self._open = len(body) == len(piece)
        self._said.append(str(msgspec.json.decode(f'"{body}"')))
        return self._said[-1]

    def end(self) -> tuple[str, str]:
        """Return all of the text, and what of it was not returned before."""
        said = "".join(self._said)
        arguments = "".join(self._pieces)
        try:
            value = msgspec.json.decode(arguments)
        except msgspec.DecodeError:  # the call broke
            return (said, "") if said else (arguments, arguments)
        text = value.get("input") if isinstance(value, dict) else None
        whole = text if isinstance(text, str) else arguments
        return whole, whole.removeprefix(said)


def shown_name(name: str, namespace: str | None) -> str:
    """Return the name that the model has for a tool."""
    return f"{namespace}__{name}" if namespace else name
