"""Tools that tool servers run: offered to the model, called between rounds of generation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.exceptions import HTTPException

from builtin_plugins.routes.common.conversation import AnswerFinished, Conversation
from builtin_plugins.routes.responses.fields import InputFields, Tool
from builtin_plugins.routes.responses.reading import messages_of
from builtin_plugins.routes.responses.tool_server import (
    ServedTool,
    ToolResult,
    ToolServer,
    ToolServerError,
)
from builtin_plugins.routes.responses.tools import RequestTools
from core.api import ConfigError, EngineConfig, InvalidRequest, did_you_mean

if TYPE_CHECKING:
    from builtin_plugins.routes.common.pipeline import ChatPipeline, PreparedChat
    from builtin_plugins.routes.responses.writing import ResponseWriter
    from core.api import Registry

MCP: Final = "mcp"
"""Type of a tool that a tool server has."""
MAX_ROUNDS: Final = 32
"""Largest number of times that the model continues after calls."""
OPTION: Final = "tool_server"
_CLIENT_CALLS: Final = ("function_call", "custom_tool_call")
_UNSERVED: Final[Mapping[str, str]] = {
    "server_url": "tool servers are those of --tool-server, by server_label",
    "connector_id": "connectors are not served",
    "headers": "the operator configures the tool servers",
    "authorization": "the operator configures the tool servers",
}
"""Fields of a tool that would make this server connect to others for its client."""


def open_tool_servers(config: EngineConfig, registry: Registry | None) -> list[ToolServer]:
    """Return the configured tool servers of all plugins. Raises `ConfigError`."""
    if registry is None or not config.options.get(OPTION):
        return []
    found: list[ToolServer] = []
    for _, servers in registry.call_hook("engine_tool_servers", config=config):
        found += servers
    labels = [server.label for server in found]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(
            f"--tool-server: got two servers with the label {twice!r}; expected unique labels. "
            "Write LABEL=URL."
        )
    return found


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of tool servers in one request."""

    servers: Mapping[str, ToolServer]
    """The servers by label."""
    tools: Mapping[int, Sequence[ServedTool]]
    """The tools of each entry in the request's list of tools, by its index."""
    labels: Mapping[int, str]
    """The label of each such entry."""

    def listed(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield each label with its tools, as the response lists them."""
        for index, tools in self.tools.items():
            yield (
                self.labels[index],
                [
                    {
                        "name": tool.name,
                        "description": tool.description,
                        "input_schema": tool.parameters,
                        "annotations": None,
                    }
                    for tool in tools
                ],
            )


class ToolServers:
    """The tool servers of this server."""

    def __init__(self, servers: Sequence[ToolServer]) -> None:
        self._by_label = {server.label: server for server in servers}

    async def read(self, fields: InputFields) -> tuple[RequestTools, Offer | None]:
        """Return the tools of a request, and those that tool servers run. Raises like `offer`."""
        offer = await self.offer(fields.tools)
        served = None if offer is None else offer.tools
        return RequestTools.of(fields.tools, fields.tool_choice, served), offer

    async def offer(self, tools: Sequence[Tool]) -> Offer | None:
        """Return the tools that a request may call at tool servers; None without any.

        Raises `InvalidRequest` for unknown servers and tools, and a 502 for a server that fails.
        """
        if not self._by_label:
            return None
        found: dict[int, Sequence[ServedTool]] = {}
        labels: dict[int, str] = {}
        for index, tool in enumerate(tools):
            if tool.type != MCP:
                continue
            where = f"tools[{index}]"
            label = self._label(tool, where)
            if label in labels.values():
                raise InvalidRequest(f"{where}.server_label", f"{label!r} is in the list twice.")
            labels[index] = label
            found[index] = _allowed(await self._list(label), tool.allowed_tools, where)
        return Offer(self._by_label, found, labels) if found else None

    def _label(self, tool: Tool, where: str) -> str:
        for name, reason in _UNSERVED.items():
            if getattr(tool, name):
                raise InvalidRequest(f"{where}.{name}", f"is not served: {reason}. Remove it.")
        if tool.require_approval not in (None, "never"):
            raise InvalidRequest(
                f"{where}.require_approval",
                f"got {tool.require_approval!r:.80}; expected 'never': calls run without an "
                "approval.",
            )
        label = tool.server_label or ""
        if label not in self._by_label:
            raise InvalidRequest(
                f"{where}.server_label",
                f"got {label!r:.100}; expected one of {', '.join(self._by_label)}"
                f"{did_you_mean(label, self._by_label) or '.'}",
            )
        return label

    async def _list(self, label: str) -> Sequence[ServedTool]:
        try:
            return await self._by_label[label].list_tools()
        except ToolServerError as error:
            raise HTTPException(502, f"tool server {label!r}: {error}") from error


def _allowed(tools: Sequence[ServedTool], given: Any, where: str) -> Sequence[ServedTool]:
    """Return the tools that `allowed_tools` names; None names all."""
    where = f"{where}.allowed_tools"
    names = given.get("tool_names") if isinstance(given, dict) else given
    if given is None:
        return tools
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidRequest(where, "must be a list of names, or an object with tool_names.")
    if isinstance(given, dict) and len(given) > 1:
        raise InvalidRequest(where, "is served with tool_names only.")
    known = [tool.name for tool in tools]
    if unknown := next((name for name in names if name not in known), None):
        raise InvalidRequest(
            where, f"names {unknown!r:.100}; the server has {', '.join(known)[:1000]}."
        )
    return [tool for tool in tools if tool.name in names]


@dataclass(slots=True)
class ToolRounds:
    """Runs the calls of one response at tool servers, and prepares what the model sees next."""

    pipeline: ChatPipeline
    conversation: Conversation
    """The conversation before the response."""
    offer: Offer
    max_calls: int | None
    """Largest number of calls (`max_tool_calls`); None: no limit."""
    new_run_id: Callable[[], str]
    _num_rounds: int = field(default=0, init=False)
    _num_calls: int = field(default=0, init=False)
    _num_items: int = field(default=0, init=False)
    """Number of output items before the current round."""
    _num_tokens: int = field(default=0, init=False)
    """Number of tokens that were generated before the current round."""

    def begin(self, writer: ResponseWriter) -> Iterator[dict[str, Any]]:
        """Yield the events that list the tools."""
        for label, tools in self.offer.listed():
            yield from writer.list_tools(label, tools)
        self._num_items = len(writer.response["output"])

    async def run_calls(self, writer: ResponseWriter) -> AsyncGenerator[dict[str, Any]]:
        """Run the calls of the round; yield the events of their results."""
        for item in writer.waiting_calls():
            result = await self._run(item)
            for data in writer.finish_call(item, result.text, is_error=result.is_error):
                yield data

    def goes_on(self, writer: ResponseWriter, ended: AnswerFinished) -> bool:
        """Return whether the model continues: it called tool servers only, and may generate."""
        if self._num_rounds >= MAX_ROUNDS:
            return False
        items = writer.response["output"][self._num_items :]
        kinds = {item["type"] for item in items}
        called = any(item["type"] == "mcp_call" for item in items)
        return called and not kinds.intersection(_CLIENT_CALLS) and ended.reason != "length"

    async def next_chat(self, writer: ResponseWriter, ended: AnswerFinished) -> PreparedChat | None:
        """Return what the model continues with; None if no token is left for it."""
        base = self.conversation
        output = writer.response["output"]
        self._num_rounds += 1
        self._num_items = len(output)
        self._num_tokens += ended.generated_tokens
        overrides = dict(base.overrides)
        limit = overrides.get("max_tokens")
        if limit is not None:
            overrides["max_tokens"] = limit - self._num_tokens
            if overrides["max_tokens"] < 1:
                return None
        messages = await asyncio.to_thread(messages_of, None, output)
        return await self.pipeline.prepare(
            replace(
                base,
                messages=[*base.messages, *messages],
                tool_choice=self._next_choice(),
                overrides=overrides,
            )
        )

    def _next_choice(self) -> Any:
        """Return the tool choice of the next round: a forced call was forced once."""
        if self._num_rounds >= MAX_ROUNDS or self._is_exhausted():
            return "none"
        choice = self.conversation.tool_choice
        return choice if choice in (None, "auto") else "auto"

    def _is_exhausted(self) -> bool:
        return self.max_calls is not None and self._num_calls >= self.max_calls

    async def _run(self, item: Mapping[str, Any]) -> ToolResult:
        if self._is_exhausted():
            return ToolResult(f"max_tool_calls of {self.max_calls} is reached", is_error=True)
        self._num_calls += 1
        try:
            arguments = msgspec.json.decode(item["arguments"] or "{}")
        except msgspec.DecodeError as error:
            return ToolResult(f"the arguments are not JSON: {error}", is_error=True)
        if not isinstance(arguments, dict):
            return ToolResult("the arguments are no JSON object", is_error=True)
        try:
            return await self.offer.servers[item["server_label"]].call(item["name"], arguments)
        except ToolServerError as error:
            return ToolResult(str(error), is_error=True)
