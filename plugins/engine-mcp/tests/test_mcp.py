"""Tools of an MCP server: listed, called and answered through the Responses API."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")
sys.path.insert(0, str(Path(__file__).parents[1]))

import uvicorn
from engine_mcp import servers as mcp_servers
from engine_mcp.servers import MAX_CHARS, McpServer, read_servers
from mcp.server.mcpserver import MCPServer

from builtin_plugins.routes.api import ToolServerError
from builtin_plugins.routes.responses.routes import ResponsesRoutes
from builtin_plugins.servers.http.server import HttpServer
from core.api import ConfigError, EngineConfig
from core.api.plugins import load_plan, make_plan
from core.cli.main import main
from core.plugin.discovery import discover
from core.testing.echo_engine import EchoEngine
from tests.in_process import send_to

IS_INSTALLED = any(ref.name == "mcp" for ref in discover())
PLUGIN = "+mcp" if IS_INSTALLED else "+engine_mcp.plugin"


def _tools() -> MCPServer:
    server = MCPServer("weather")

    @server.tool(description="The weather of a city.")
    def weather(city: str) -> str:
        return f"{city}: 21 degrees"

    @server.tool()
    def broken() -> str:
        raise ValueError("no such place")

    @server.tool()
    def long() -> str:
        return "x" * (MAX_CHARS + 10)

    @server.tool()
    async def slow() -> str:
        await asyncio.Event().wait()
        return ""

    return server


@pytest.fixture(scope="module", params=["http", pytest.param("sse", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Serve the tools over one of the transports."""
    app = _tools().streamable_http_app() if request.param == "http" else _tools().sse_app()
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    path = "mcp" if request.param == "http" else "sse"
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/{path}"
    server.should_exit = True
    thread.join()
    listener.close()


def test_tools_are_listed_with_their_schemas(url: str) -> None:
    tools = {tool.name: tool for tool in asyncio.run(McpServer("a", url, 30).list_tools())}
    assert tools.keys() == {"weather", "broken", "long", "slow"}
    assert tools["weather"].description == "The weather of a city."
    assert tools["weather"].parameters["properties"]["city"]["type"] == "string"


def test_call_returns_its_text(url: str) -> None:
    result = asyncio.run(McpServer("a", url, 30).call("weather", {"city": "Paris"}))
    assert (result.text, result.is_error) == ("Paris: 21 degrees", False)


def test_error_of_a_tool_is_a_result(url: str) -> None:
    result = asyncio.run(McpServer("a", url, 30).call("broken", {}))
    assert result.is_error
    assert result.text == "Error executing tool broken"


def test_long_result_is_cut(url: str) -> None:
    text = asyncio.run(McpServer("a", url, 30).call("long", {})).text
    assert text.endswith(f"[cut after {MAX_CHARS} characters]")
    assert len(text) < MAX_CHARS + 100


def test_call_without_an_answer_ends_in_time(url: str) -> None:
    with pytest.raises(ToolServerError, match=r"got no answer within 0\.5 s"):
        asyncio.run(McpServer("a", url, 0.5).call("slow", {}))


def test_list_is_used_again_while_it_is_young(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def twice() -> tuple[Any, Any]:
        server = McpServer("a", url, 30)
        first = await server.list_tools()
        return first, await server.list_tools()

    first, second = asyncio.run(twice())
    assert first is second
    monkeypatch.setattr(mcp_servers, "LIST_S", -1.0)
    first, second = asyncio.run(twice())
    assert first is not second


def test_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ToolServerError, match=r"\w"):
        asyncio.run(McpServer("a", f"http://127.0.0.1:{port}/mcp", 30).list_tools())


def test_flag_has_labels_urls_and_addresses() -> None:
    found = read_servers("a=http://h/mcp, https://tools.example/x,localhost:9001", 5)
    assert [(each.label, each._url) for each in found] == [
        ("a", "http://h/mcp"),
        ("tools_example", "https://tools.example/x"),
        ("localhost", "http://localhost:9001/sse"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("demo", "got demo; expected MCP servers"),
        ("a=ftp://h/x", "expected LABEL=URL"),
        ("http://", "expected LABEL=URL"),
        ("a b=http://h/x", "got the label 'a b'"),
        ("http://h:port/x", "expected LABEL=URL"),
    ],
)
def test_wrong_servers_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_servers(text, 5)


def test_plugin_replaces_the_refused_flag(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--plugins", PLUGIN, "--tool-server", "demo")
    assert main(["config", *flags]) == 2
    assert "--tool-server: got demo" in capsys.readouterr().err
    registry = load_plan(make_plan([PLUGIN]))
    options = {option.name for _, option in registry.options() if not option.refuse}
    assert {"tool_server", "tool_call_timeout"} <= options


def test_model_calls_a_tool_and_answers_with_its_result(url: str) -> None:
    options = {
        "tool_server": f"maps={url}",
        "tool_call_parser": "hermes",
        "enable_auto_tool_choice": True,
    }
    config = EngineConfig(options=options)
    engine = EchoEngine(config)
    plugins = ["none", "tool_parsers", "routes_responses", PLUGIN]
    engine.registry = load_plan(make_plan(plugins))
    app = HttpServer(engine, config, [ResponsesRoutes(engine, config)]).app
    call = json.dumps({"name": "maps__weather", "arguments": {"city": "Paris"}})
    body = {
        "input": f"<tool_call>{call}</tool_call>",
        "tools": [{"type": "mcp", "server_label": "maps", "require_approval": "never"}],
    }
    reply = send_to(app, "POST", "/v1/responses", json=body)
    assert reply.status_code == 200, reply.text
    listed, called, message = reply.json()["output"]
    assert [tool["name"] for tool in listed["tools"]][:1] == ["weather"]
    assert (called["type"], called["output"]) == ("mcp_call", "Paris: 21 degrees")
    assert message["content"][0]["text"] == "Paris: 21 degrees"
