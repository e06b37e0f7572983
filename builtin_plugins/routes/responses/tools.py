"""Tools of a Responses request: functions for the model, calls in the form of each tool's type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from builtin_plugins.routes.common.free_text import TEXT_PARAMETERS, is_plain_text
from builtin_plugins.routes.common.tools import MAX_TOOLS
from builtin_plugins.routes.responses.fields import Tool, ToolChoice
from builtin_plugins.routes.responses.tool_server import ServedTool
from core.api import InvalidRequest

SKIPPED_TOOL_TYPES: Final = frozenset(
    {"image_generation", "tool_search", "web_search", "web_search_preview"}
)
"""Tools of OpenAI's servers, which Codex sends to every model: omitted, and reported as ignored."""


@dataclass(frozen=True, slots=True)
class ClientTool:
    """Type and name of a tool in the request."""

    type: str
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class RequestTools:
    """The tools of a request."""

    functions: list[dict[str, Any]]
    """Tools in the form of chat templates."""
    known: Mapping[str, ClientTool]
    """The client's tools, by the names in the prompt."""
    choice: Any
    """None, `auto`, `none`, `required`, or a function, as in chat completions."""
    ignored: tuple[str, ...] = ()
    """Field names of omitted tools, and of formats that are not held."""

    @classmethod
    def of(
        cls,
        tools: Sequence[Tool],
        choice: str | ToolChoice,
        served: Mapping[int, Sequence[ServedTool]] | None = None,
    ) -> RequestTools:
        """Read tools and the tool choice. Raises `InvalidRequest` for unsupported tools.

        `served` has the tools of tool servers, by the index of their entry.
        """
        functions: list[dict[str, Any]] = []
        known: dict[str, ClientTool] = {}
        ignored: list[str] = []
        for i, tool in enumerate(tools):
            if len(functions) > MAX_TOOLS:
                break  # too many; `check_tools` reports it
            if tool.type in SKIPPED_TOOL_TYPES:
                ignored.append(f"tools.{i}")
            if tool.type == "custom" and not is_plain_text(tool.format):
                ignored.append(f"tools.{i}.format")
            expanded = (
                _served(tool, served[i])
                if served is not None and i in served
                else _expand(tool, f"tools[{i}]")
            )
            for inner, client_tool in expanded:
                name = model_tool_name(client_tool.name, client_tool.namespace)
                known[name] = client_tool
                functions.append({"type": "function", "function": _function(name, inner)})
        return cls(functions, known, None, tuple(ignored)).chosen(choice)

    def chosen(self, choice: str | ToolChoice) -> RequestTools:
        """Return the tools with a tool choice applied."""
        if isinstance(choice, str):
            return self._with(choice if self.functions or choice == "required" else None)
        if choice.type in ("function", "custom", "mcp"):
            return self._with(
                {
                    "type": "function",
                    "function": {"name": self._prompt_name("tool_choice", choice.name)},
                }
            )
        if choice.type != "allowed_tools":
            raise InvalidRequest(
                "tool_choice.type",
                f"must be function, custom or allowed_tools, not {choice.type!r}.",
            )
        allowed = [each for each in choice.tools or () if each.type not in SKIPPED_TOOL_TYPES]
        if not 0 < len(allowed) <= MAX_TOOLS:
            raise InvalidRequest(
                "tool_choice.tools", f"must name 1 to {MAX_TOOLS} tools that are served here."
            )
        names = {
            self._prompt_name(f"tool_choice.tools[{i}]", each.name)
            for i, each in enumerate(allowed)
        }
        functions = [each for each in self.functions if each["function"]["name"] in names]
        return RequestTools(functions, self.known, choice.mode or "auto", self.ignored)

    def _with(self, choice: Any) -> RequestTools:
        return RequestTools(self.functions, self.known, choice, self.ignored)

    def _prompt_name(self, field: str, name: str | None) -> str:
        for prompt_name, tool in self.known.items():
            if name in (prompt_name, tool.name):
                return prompt_name
        raise InvalidRequest(
            f"{field}.name",
            f"names {name!r:.100}, which is not among the tools: {', '.join(self.known)}.",
        )


def _served(tool: Tool, served: Sequence[ServedTool]) -> list[tuple[Tool, ClientTool]]:
    """Return the tools of a tool server."""
    return [
        (
            Tool(
                type="function",
                name=each.name,
                description=each.description,
                parameters=dict(each.parameters),
            ),
            ClientTool("mcp", each.name, tool.server_label),
        )
        for each in served
    ]


def _expand(tool: Tool, where: str) -> list[tuple[Tool, ClientTool]]:
    """Return the tools of one list entry; a namespace has several."""
    if tool.type in SKIPPED_TOOL_TYPES:
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
        return [(tool, ClientTool(tool.type, tool.name))]
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
        found.append((inner, ClientTool(inner.type, inner.name, tool.name)))
    return found


def _function(name: str, tool: Tool) -> dict[str, Any]:
    parameters = (
        TEXT_PARAMETERS
        if tool.type == "custom"
        else tool.parameters or {"type": "object", "properties": {}}
    )
    described = {"description": tool.description} if tool.description else {}
    return {"name": name, **described, "parameters": parameters}


def model_tool_name(name: str, namespace: str | None) -> str:
    """Return the name of a tool in the prompt."""
    return f"{namespace}__{name}" if namespace else name
