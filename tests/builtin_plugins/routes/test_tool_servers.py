"""Tools that tool servers run in the Responses API: rounds, events, limits, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from builtin_plugins.routes.responses import served_tools
from builtin_plugins.routes.responses.served_tools import open_tool_servers
from builtin_plugins.routes.responses.tool_server import (
    ServedTool,
    ToolResult,
    ToolServerError,
)
from core.api import ConfigError, EngineConfig
from tests.builtin_plugins.routes.test_responses import stream_events

ADD = ServedTool(
    "add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
)
FAIL = ServedTool("fail", "Fails.", {"type": "object", "properties": {}})
OFFLINE = ServedTool("offline", "Is gone.", {"type": "object", "properties": {}})
TOOL = {"type": "mcp", "server_label": "math"}
CLIENT_TOOL = {"type": "function", "name": "ask", "parameters": {"type": "object"}}


class Math:
    """A tool server in this process."""

    label = "math"

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.text = "3"
        self.is_down = False

    async def list_tools(self) -> Sequence[ServedTool]:
        if self.is_down:
            raise ToolServerError("got no answer within 1 s")
        return [ADD, FAIL, OFFLINE]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self.calls.append((name, arguments))
        await asyncio.sleep(0)
        if name == "offline":
            raise ToolServerError("connection refused")
        return ToolResult("does not work" if name == "fail" else self.text, name == "fail")


@pytest.fixture
def math(monkeypatch: pytest.MonkeyPatch) -> Math:
    server = Math()
    monkeypatch.setattr(
        "builtin_plugins.routes.responses.routes.open_tool_servers",
        lambda config, registry: [server],
    )
    return server


@pytest.fixture
def api(math: Math, make_api: Any) -> Any:
    made = make_api(tool_call_parser="hermes", enable_auto_tool_choice=True)
    made.engine.max_model_len = 4096
    return made


def call_of(name: str = "math__add", **arguments: Any) -> str:
    text = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{text}</tool_call>"


def send(api: Any, content: str, *, tools: Sequence[Any] = (TOOL,), **fields: Any) -> Any:
    body = {"input": content, "tools": list(tools), **fields}
    return api.call("POST", "/v1/responses", json=body)


def test_call_is_run_and_the_model_continues_with_its_result(api: Any, math: Math) -> None:
    body = send(api, call_of(a=1)).json()
    listed, call, message = body["output"]
    assert (listed["type"], listed["server_label"]) == ("mcp_list_tools", "math")
    assert [tool["name"] for tool in listed["tools"]] == ["add", "fail", "offline"]
    assert listed["tools"][0]["input_schema"] == ADD.parameters
    assert (call["type"], call["server_label"], call["name"]) == ("mcp_call", "math", "add")
    assert (call["arguments"], call["output"], call["error"]) == ('{"a": 1}', "3", None)
    assert call["status"] == "completed"
    assert call["id"].startswith("mcp_")
    assert message["content"][0]["text"] == "3"
    assert math.calls == [("add", {"a": 1})]
    assert body["status"] == "completed"
    assert body["tools"] == [TOOL]


def test_usage_is_the_sum_of_the_rounds(api: Any) -> None:
    first = call_of(a=1)
    usage = send(api, first).json()["usage"]
    assert usage["output_tokens"] == len(first) + 1
    assert usage["input_tokens"] == len(first) + 1
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_stream_has_official_events_in_order(api: Any) -> None:
    events = stream_events(send(api, call_of(a=1), stream=True))
    kinds = [event["type"].removeprefix("response.") for event in events]
    order = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    assert order == [
        *("created", "in_progress"),
        *("output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed"),
        "output_item.done",
        *("output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta"),
        *("mcp_call_arguments.done", "mcp_call.completed", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


def test_several_calls_and_rounds_run_in_order(api: Any, math: Math) -> None:
    math.text = call_of("math__fail")
    kinds = [item["type"] for item in send(api, call_of(a=1) + call_of(a=2)).json()["output"]]
    assert kinds == ["mcp_list_tools", "mcp_call", "mcp_call", "mcp_call", "message"]
    assert [name for name, _ in math.calls] == ["add", "add", "fail"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (call_of("math__fail"), "does not work"),
        (call_of("math__offline"), "connection refused"),
    ],
)
def test_failed_call_is_an_error_that_the_model_reads(api: Any, call: str, error: str) -> None:
    _, item, message = send(api, call).json()["output"]
    assert (item["status"], item["error"], item["output"]) == ("failed", error, None)
    assert message["content"][0]["text"] == error


def test_call_of_a_client_tool_ends_the_response(api: Any, math: Math) -> None:
    content = call_of(a=1) + call_of("ask")
    output = send(api, content, tools=[TOOL, CLIENT_TOOL]).json()["output"]
    assert [item["type"] for item in output] == ["mcp_list_tools", "mcp_call", "function_call"]
    assert output[1]["output"] == "3"


def test_max_tool_calls_bounds_the_calls(api: Any, math: Math) -> None:
    body = send(api, call_of(a=1) + call_of(a=2), max_tool_calls=1).json()
    calls = [item for item in body["output"] if item["type"] == "mcp_call"]
    assert [call["status"] for call in calls] == ["completed", "failed"]
    assert calls[1]["error"] == "max_tool_calls of 1 is reached"
    assert len(math.calls) == 1


def test_rounds_are_bounded(api: Any, math: Math, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_tools, "MAX_ROUNDS", 3)
    math.text = call_of(a=1)  # without an end
    body = send(api, call_of(a=1)).json()
    assert body["status"] == "completed"
    assert len(math.calls) == 3


def test_output_tokens_are_bounded_over_all_rounds(api: Any) -> None:
    content = call_of(a=1)
    body = send(api, content, max_output_tokens=len(content)).json()
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["usage"]["output_tokens"] == len(content)


def test_cut_call_is_not_run(api: Any, math: Math) -> None:
    content = call_of(a=1)
    body = send(api, content, max_output_tokens=len(content) - 15).json()
    assert body["status"] == "incomplete"
    assert math.calls == []


def test_stored_response_continues_with_calls_and_results(api: Any) -> None:
    first = send(api, call_of(a=1)).json()
    assert send(api, "more", previous_response_id=first["id"], tools=[]).status_code == 200
    again = [*first["output"], {"role": "user", "content": "more"}]
    body = {"input": again, "tools": [TOOL]}
    assert api.call("POST", "/v1/responses", json=body).json()["status"] == "completed"


def test_background_response_runs_calls(api: Any, math: Math) -> None:
    events = stream_events(send(api, call_of(a=1), background=True, stream=True))
    assert events[-1]["type"] == "response.completed"
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        *("mcp_list_tools", "mcp_call", "message")
    ]
    assert len(math.calls) == 1


def test_allowed_tools_limit_what_the_model_sees(api: Any) -> None:
    for allowed in (["add"], {"tool_names": ["add"]}):
        body = send(api, "hello", tools=[{**TOOL, "allowed_tools": allowed}]).json()
        assert [tool["name"] for tool in body["output"][0]["tools"]] == ["add"]
        names = [tool["function"]["name"] for tool in api.engine.rendered[-1]["tools"]]
        assert names == ["math__add"]


def test_input_tokens_count_the_tools(api: Any) -> None:
    body = {"input": "hello", "tools": [TOOL]}
    assert api.call("POST", "/v1/responses/input_tokens", json=body).status_code == 200


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"server_label": "maths"}, "tools[0].server_label"),
        ({"server_url": "http://169.254.169.254/"}, "tools[0].server_url"),
        ({"connector_id": "connector_gmail"}, "tools[0].connector_id"),
        ({"headers": {"Authorization": "a"}}, "tools[0].headers"),
        ({"authorization": "a"}, "tools[0].authorization"),
        ({"require_approval": "always"}, "tools[0].require_approval"),
        ({"allowed_tools": ["sub"]}, "tools[0].allowed_tools"),
        ({"allowed_tools": {"read_only": True}}, "tools[0].allowed_tools"),
        ({"allowed_tools": {"tool_names": ["add"], "read_only": True}}, "tools[0].allowed_tools"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    api: Any, math: Math, tool: Mapping[str, Any], param: str
) -> None:
    reply = send(api, call_of(a=1), tools=[{**TOOL, **tool}])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert math.calls == []


def test_server_twice_is_refused(api: Any) -> None:
    reply = send(api, "a", tools=[TOOL, TOOL])
    assert reply.json()["error"]["param"] == "tools[1].server_label"


def test_server_that_is_down_is_a_502(api: Any, math: Math) -> None:
    math.is_down = True
    reply = send(api, "a")
    assert reply.status_code == 502
    assert "tool server 'math': got no answer" in reply.json()["error"]["message"]


def test_labels_must_be_unique() -> None:
    class Plugins:
        def call_hook(self, hook: str, **arguments: Any) -> list[Any]:
            return [("a", [Math()]), ("b", [Math()])]

    config = EngineConfig(options={"tool_server": "a,b"})
    with pytest.raises(ConfigError, match="two servers with the label 'math'"):
        open_tool_servers(config, Plugins())  # type: ignore[arg-type]
    assert open_tool_servers(EngineConfig(), Plugins()) == []  # type: ignore[arg-type]
