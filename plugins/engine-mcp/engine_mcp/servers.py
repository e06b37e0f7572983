"""Servers of the Model Context Protocol as tool servers."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from mcp import Client
from mcp.client.sse import sse_client

from builtin_plugins.routes.api import ServedTool, ToolResult, ToolServerError
from core.api import ConfigError

FLAG: Final = "--tool-server"
LIST_S: Final = 60.0
"""Age in seconds up to which a list of tools is used again."""
MAX_TOOLS: Final = 128
"""Largest number of tools of a server."""
MAX_CHARS: Final = 1 << 18
"""Largest size of a result in characters; the rest is cut."""
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,48}")
_HOST_AND_PORT: Final = re.compile(r"[\w.-]+:\d{1,5}")


def read_servers(text: str, timeout_s: float) -> list[McpServer]:
    """Return the servers of `--tool-server`. Raises `ConfigError`."""
    return [_read(item.strip(), timeout_s) for item in text.split(",") if item.strip()]


def _read(item: str, timeout_s: float) -> McpServer:
    if item == "demo":
        raise ConfigError(
            f"{FLAG}: got demo; expected MCP servers: its browser and its Python container are not "
            "part of this version. Write LABEL=URL."
        )
    label, equals, url = item.partition("=")
    if not equals or "/" in label:
        label = ""
        url = item
    if _HOST_AND_PORT.fullmatch(url):
        url = f"http://{url}/sse"
    try:
        address = urlsplit(url)
        is_valid = address.scheme in ("http", "https") and address.port != 0
        host = address.hostname or ""
    except ValueError:  # a port that is not a number
        is_valid = False
        host = ""
    if not (is_valid and host):
        raise ConfigError(
            f"{FLAG}: got {item!r:.200}; expected LABEL=URL, an http(s) URL or HOST:PORT. Correct "
            "it."
        )
    label = label or re.sub(r"[^A-Za-z0-9_-]", "_", host)
    if not _LABEL.fullmatch(label):
        raise ConfigError(
            f"{FLAG}: got the label {label!r:.100}; expected up to 48 letters, digits, - and _. "
            "Change it."
        )
    return McpServer(label, url, timeout_s)


class McpServer:
    """A server of the Model Context Protocol; each call has a session of its own."""

    def __init__(self, label: str, url: str, timeout_s: float) -> None:
        self.label = label
        self._url = url
        self._timeout_s = timeout_s
        self._tools: list[ServedTool] = []
        self._listed_s = float("-inf")
        self._listing = asyncio.Lock()

    async def list_tools(self) -> Sequence[ServedTool]:
        """Return the tools; a list that is young enough is used again."""
        async with self._listing:
            if time.monotonic() - self._listed_s > LIST_S:
                async with self._session() as session:
                    self._tools = await _list(session)
                self._listed_s = time.monotonic()
            return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a call."""
        async with self._session() as session:
            result = await session.call_tool(name, dict(arguments))
        text = "\n".join(map(_text, result.content))
        if not text and result.structured_content is not None:
            text = msgspec.json.encode(result.structured_content).decode()
        if len(text) > MAX_CHARS:
            text = f"{text[:MAX_CHARS]}\n[cut after {MAX_CHARS} characters]"
        return ToolResult(text, bool(result.is_error))

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[Client]:
        """Connect for one exchange within the time limit. Raises `ToolServerError`."""
        transport = sse_client(self._url) if self._url.endswith("/sse") else self._url
        try:
            async with asyncio.timeout(self._timeout_s):
                async with Client(transport, cache=None) as client:
                    yield client
        except TimeoutError as error:
            raise ToolServerError(f"got no answer within {self._timeout_s:g} s") from error
        except Exception as error:  # of the library, its transport, and groups of them
            raise ToolServerError(_reason(error)) from error


async def _list(session: Client) -> list[ServedTool]:
    tools: list[ServedTool] = []
    cursor: str | None = None
    while len(tools) < MAX_TOOLS:
        page = await session.list_tools(cursor=cursor)
        tools += [
            ServedTool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools
        ]
        cursor = page.next_cursor
        if not cursor or not page.tools:
            break
    return tools[:MAX_TOOLS]


def _text(content: Any) -> str:
    """Return the text of a part of a result; of other parts, their type."""
    text = getattr(content, "text", None)
    return text if isinstance(text, str) else f"[{content.type}]"


def _reason(error: BaseException) -> str:
    """Return the first error of nested groups as one line."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
