"""What a tool server is: it lists tools and runs their calls. Plain data and a protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool of a tool server."""

    name: str
    description: str
    """What the tool does, for the model; may be empty."""
    parameters: Mapping[str, Any]
    """JSON schema of its arguments."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    text: str
    is_error: bool = False
    """True: the call failed, and the text says why."""


class ToolServerError(Exception):
    """A tool server that cannot be reached, or an answer that cannot be read."""


class ToolServer(Protocol):
    """A server of tools that the operator has configured (`--tool-server`)."""

    label: str
    """Name in requests (`server_label`), unique over all servers."""

    async def list_tools(self) -> Sequence[ServedTool]:
        """Return the tools. Raises `ToolServerError`."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a call. Raises `ToolServerError`."""
