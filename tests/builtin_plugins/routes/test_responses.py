"""`/v1/responses`: items, events, and stored responses."""

from __future__ import annotations

import asyncio
import json

import httpx
import msgspec
import pytest

from builtin_plugins.routes.responses import compaction
from builtin_plugins.routes.responses.fields import Item
from builtin_plugins.routes.responses.reading import items_of, messages_of, references

ON = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "think"}
ADD = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def send(api, content="hello", **fields):
    return api.call("POST", "/v1/responses", json={"input": content, **fields})


def stream_events(reply):
    """Return the events of a stream; each has its type as name, and a number."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in reply.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        assert events[-1]["sequence_number"] == len(events) - 1
    return events


def test_answer_has_protocol_fields(api):
    body = send(api, instructions="Be kind.", metadata={"a": "b"}, temperature=0.5, user="u").json()
    assert body["id"].startswith("resp_")
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", "echo")
    (item,) = body["output"]
    assert item["id"].startswith("msg_")
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
    ]
    assert body["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }
    request_fields = {
        name: body[name]
        for name in ("instructions", "metadata", "temperature", "user", "store", "error")
    }
    assert request_fields == {
        "instructions": "Be kind.",
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "user": "u",
        "store": True,
        "error": None,
    }


def test_thoughts_text_and_calls_are_output_items(make_api):
    content = f"<think>hm</think>Adding.\n{CALL}"
    body = send(
        make_api(**ON), content, tools=[ADD], include=["reasoning.encrypted_content"]
    ).json()
    reasoning, message, call = body["output"]
    assert (reasoning["type"], reasoning["summary"], reasoning["content"]) == (
        "reasoning",
        [],
        [{"type": "reasoning_text", "text": "hm"}],
    )
    assert message["content"][0]["text"] == "Adding."
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "add", '{"a": 1}')
    assert call["call_id"]
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] == 2
    (again,) = messages_of(
        None, items_of(msgspec.convert([{**reasoning, "content": None}], list[Item]), {})
    )
    assert again["reasoning_content"] == "hm"


def test_stream_has_official_events_in_order(make_api):
    content = f"<think>hm</think>Adding.\n{CALL}"
    events = stream_events(send(make_api(**ON), content, tools=[ADD], stream=True))
    kinds = [event["type"].removeprefix("response.") for event in events]
    order = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    assert order == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *(
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
        ),
        "completed",
    ]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in done] == [0, 1, 2]
    assert [event["item"] for event in done] == events[-1]["response"]["output"]
    for kind, text in (
        ("output_text", "Adding."),
        ("reasoning_text", "hm"),
        ("function_call_arguments", '{"a": 1}'),
    ):
        assert (
            "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")
            == text
        )
    assert events[0]["response"]["output"] == []


def test_custom_tools_and_namespaces_keep_client_form(make_api):
    api = make_api(**ON)
    patch = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
    space = {"type": "namespace", "name": "files", "description": "", "tools": [ADD]}
    calls = (
        '<tool_call>{"name": "apply_patch", "arguments": {"input": "*** Begin"}}</tool_call>'
        '<tool_call>{"name": "files__add", "arguments": {"a": 1}}</tool_call>'
    )
    first, second = send(api, calls, tools=[patch, space]).json()["output"]
    assert (first["type"], first["name"], first["input"]) == (
        "custom_tool_call",
        "apply_patch",
        "*** Begin",
    )
    assert (second["type"], second["name"], second["namespace"]) == (
        "function_call",
        "add",
        "files",
    )
    events = [
        event["type"]
        for event in stream_events(send(api, calls, tools=[patch, space], stream=True))
    ]
    assert "response.custom_tool_call_input.done" in events
    messages = messages_of(None, items_of(msgspec.convert([first, second], list[Item]), {}))
    names = [call["function"] for call in messages[0]["tool_calls"]]
    assert names == [
        {"name": "apply_patch", "arguments": {"input": "*** Begin"}},
        {"name": "files__add", "arguments": {"a": 1}},
    ]


@pytest.mark.parametrize("cut", [0, 30])
def test_custom_tool_input_streams_and_broken_call_is_incomplete(make_api, cut):
    text = '*** Begin\n+f("\\t")\n*** End'
    patch = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
    arguments = json.dumps({"input": text})
    call = f'<tool_call>{{"name": "apply_patch", "arguments": {arguments}}}</tool_call>'
    limit = {"max_output_tokens": len(call) - cut} if cut else {}
    events = stream_events(send(make_api(**ON), call, tools=[patch], stream=True, **limit))
    deltas = [
        event["delta"]
        for event in events
        if event["type"] == "response.custom_tool_call_input.delta"
    ]
    (item,) = events[-1]["response"]["output"]
    assert len(deltas) > len(text) // 4
    assert "".join(deltas) == item["input"]
    assert (item["input"] == text, text.startswith(item["input"])) == (not cut, True)
    assert (item["status"], events[-1]["response"]["status"]) == (
        ("incomplete",) * 2 if cut else ("completed",) * 2
    )


def test_codex_request_is_accepted(make_api):
    reply = send(
        make_api(**ON),
        [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Sandboxed."}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "hello"}],
            },
        ],
        instructions="You are Codex.",
        tools=[ADD, {"type": "web_search", "external_web_access": False}],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="7",
        text={"verbosity": "low"},
        client_metadata={"x": "y"},
    )
    assert reply.headers["X-Ignored-Fields"] == "tools.1"
    assert stream_events(reply)[-1]["type"] == "response.completed"


def test_items_become_template_messages():
    items = [
        {"role": "developer", "content": "Sandboxed."},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Wait."}],
        },
        {"type": "function_call", "name": "add", "call_id": "c1", "arguments": '{"a": 1}'},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "2"}],
        },
    ]
    assert messages_of("Be kind.", items_of(msgspec.convert(items, list[Item]), {})) == [
        {"role": "system", "content": "Be kind.\nSandboxed."},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]


def test_length_limited_answer_is_incomplete(api):
    body = send(api, max_output_tokens=2).json()
    assert (body["status"], body["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert (body["output"][0]["status"], body["completed_at"]) == ("incomplete", None)
    assert (
        stream_events(send(api, max_output_tokens=2, stream=True))[-1]["type"]
        == "response.incomplete"
    )


def test_logprobs_accompany_their_text(make_api):
    include = ["message.output_text.logprobs"]
    body = send(make_api(**ON), "<think>hm</think>yes", top_logprobs=1, include=include).json()
    logprobs = body["output"][1]["content"][0]["logprobs"]
    assert "".join(each["token"] for each in logprobs).endswith("yes")
    assert "hm" not in "".join(each["token"] for each in logprobs)
    assert [len(each["top_logprobs"]) for each in logprobs[-3:]] == [1, 1, 1]


def test_effort_and_text_format_are_passed_on(api):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}}
    send(api, "{}", text=text, reasoning={"effort": "low"})
    send(api, "{}", text={"format": {"type": "json_object"}}, reasoning={"effort": "none"})
    assert [params.structured_outputs.json for params in api.engine.sampling] == [schema, None]
    assert [each["template_kwargs"] for each in api.engine.rendered] == [
        {"reasoning_effort": "low"},
        {"enable_thinking": False, "thinking": False},
    ]


def test_allowed_tools_limit_prompt_tools(make_api):
    api = make_api(**ON)
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "add"}],
    }
    send(api, tools=[ADD, {**ADD, "name": "sub"}], tool_choice=allowed)
    assert [tool["function"]["name"] for tool in api.engine.rendered[0]["tools"]] == ["add"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "mcp", "server_label": "a"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        (
            {"tools": [{"type": "function", "name": "a", "parameters": {"type": "array"}}]},
            "tools[0].parameters.type",
        ),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice.name"),
        ({"tools": [ADD], "tool_choice": {"type": "hosted"}}, "tool_choice.type"),
        (
            {"tools": [ADD], "tool_choice": {"type": "allowed_tools", "mode": "required"}},
            "tool_choice.tools",
        ),
        ({"tools": [ADD], "tool_choice": "often"}, "tool_choice"),
        ({"content": []}, "input"),
        ({"content": [{"type": "item_reference", "id": "a"}]}, "input[0].id"),
        ({"content": [{"type": "computer_call", "id": "a"}]}, "input[0].type"),
        (
            {"content": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"content": [{"type": "function_call_output", "output": "a"}]}, "input[0].call_id"),
        ({"content": [{"content": "a"}]}, "input[0].role"),
        ({"include": ["everything"]}, "include"),
        ({"stream_options": {}}, "stream_options"),
        ({"background": True, "store": False}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": "b" * 600}}, "metadata[...]"),
        ({"top_p": 0}, "top_p"),
    ],
)
def test_errors_name_client_field(make_api, fields, param):
    reply = send(make_api(**ON), **fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_stream_failure_sends_failed_event(api):
    api.engine.fail_at = 2
    events = stream_events(send(api, stream=True))
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "failed")
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "made to fail"}
    assert send(api).status_code == 500


# --- what is stored


def test_stored_response_is_fetched_continued_and_deleted(api):
    first = send(api, "hello").json()
    path = f"/v1/responses/{first['id']}"
    assert api.get(path).json() == first
    second = send(api, "more", previous_response_id=first["id"], instructions="Now.").json()
    items = api.get(f"/v1/responses/{second['id']}/input_items?order=asc").json()
    assert [item["content"][0]["text"] for item in items["data"]] == ["hello", "hello", "more"]
    assert (items["has_more"], items["first_id"]) == (False, items["data"][0]["id"])
    page = api.get(
        f"/v1/responses/{second['id']}/input_items?limit=1&after={items['data'][2]['id']}"
    ).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (
        [items["data"][1]["id"]],
        True,
    )
    assert api.call("DELETE", path).json() == {
        "id": first["id"],
        "object": "response",
        "deleted": True,
    }
    for reply in (api.get(path), api.call("DELETE", path)):
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "response_not_found")
    reply = send(api, "a", previous_response_id=first["id"])
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "previous_response_not_found"


def test_input_items_by_reference(api):
    (content,) = send(api, "hello").json()["output"]
    reference = {"type": "item_reference", "id": content["id"]}
    again = send(api, [reference, {"role": "user", "content": "more"}]).json()
    items = api.get(f"/v1/responses/{again['id']}/input_items?order=asc").json()["data"]
    assert items[0] == content
    api.call("DELETE", f"/v1/responses/{again['id']}")
    assert send(api, [reference]).status_code == 200  # its first turn_in_order is still there


class Text(str):
    """Fails when its characters are walked."""

    def __iter__(self):
        raise AssertionError("the characters were walked")


def test_text_input_is_not_searched_for_references():
    assert references(Text("x" * 100)) == frozenset()
    items = msgspec.convert([{"type": "item_reference", "id": "a"}, {"role": "user"}], list[Item])
    assert references(items) == {"a"}


def test_store_false_stores_nothing(api):
    assert api.get(f"/v1/responses/{send(api, store=False).json()['id']}").status_code == 404


def test_instructions_are_not_carried_over(api):
    first = send(api, "hello", instructions="Once.").json()
    assert messages_of("Now.", [*items_of("hello", {}), *first["output"]])[0] == {
        "role": "system",
        "content": "Now.",
    }


@pytest.mark.parametrize("path", ["limit=0", "limit=x", "order=up", "after=unknown"])
def test_invalid_item_pages_are_rejected(api, path):
    response_id = send(api).json()["id"]
    assert api.get(f"/v1/responses/{response_id}/input_items?{path}").status_code == 400


@pytest.mark.parametrize(
    ("text", "limit", "param", "message"),
    [
        (" \n", None, "input", "the model wrote no summary"),
        ("   goals", 2, "max_output_tokens", "got 2; expected enough tokens for a summary"),
    ],
)
def test_compaction_without_summary_is_refused(api, monkeypatch, text, limit, param, message):
    monkeypatch.setattr(compaction, "REQUEST", text)  # the echo engine repeats it as summary
    items = [{"role": "assistant", "content": "hello"}]
    body = {"model": "echo", "input": items, "max_output_tokens": limit}
    reply = api.call("POST", "/v1/responses/compact", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, "no_summary")
    assert message in error["message"]


def test_input_tokens_are_counted(api):
    reply = api.call("POST", "/v1/responses/input_tokens", json={"input": "hello", "tools": [ADD]})
    assert reply.json() == {"object": "response.input_tokens", "input_tokens": 5}


def test_split_surrogates_are_encoded(api):
    for path, body in (
        ("responses", b'{"input": "\\ud800", "instructions": "\\udfff"}'),
        ("responses", b'{"input": [{"role": "user", "content": "\\ud800"}]}'),
        ("messages", b'{"max_tokens": 5, "messages": [{"role": "user", "content": "\\ud800"}]}'),
    ):
        reply = api.call(
            "POST", f"/v1/{path}", content=body, headers={"content-type": "application/json"}
        )
        assert reply.status_code in (200, 400), reply.text


# --- in the background


def in_one_loop(api, work):
    """Run several requests in one event loop, in which background responses run."""

    async def run():
        transport = httpx.ASGITransport(api.server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await work(client)

    return asyncio.run(run())


async def ended(client, response_id):
    while True:
        body = (await client.get(f"/v1/responses/{response_id}")).json()
        if body["status"] not in ("queued", "in_progress"):
            return body
        await asyncio.sleep(0)


def test_background_response_is_fetched_when_ready(api):
    async def work(client):
        begun = (
            await client.post("/v1/responses", json={"input": "hello", "background": True})
        ).json()
        return begun, await ended(client, begun["id"])

    begun, done = in_one_loop(api, work)
    assert (begun["status"], begun["output"], begun["background"]) == ("queued", [], True)
    assert (done["status"], done["output"][0]["content"][0]["text"]) == ("completed", "hello")


def test_background_response_is_cancelled(api):
    async def work(client):
        api.engine.gate.clear()
        begun = (
            await client.post("/v1/responses", json={"input": "hello", "background": True})
        ).json()
        early = await client.post(
            "/v1/responses", json={"input": "a", "previous_response_id": begun["id"]}
        )
        cancelled = (await client.post(f"/v1/responses/{begun['id']}/cancel")).json()
        again = (await client.post(f"/v1/responses/{begun['id']}/cancel")).json()
        return early, cancelled, again

    early, cancelled, again = in_one_loop(api, work)
    assert (early.status_code, early.json()["error"]["param"]) == (400, "previous_response_id")
    assert cancelled["status"] == again["status"] == "cancelled"
    assert len(api.engine.aborted) == 1


def test_foreground_response_cannot_be_cancelled(api):
    assert api.call("POST", f"/v1/responses/{send(api).json()['id']}/cancel").status_code == 400
    assert api.call("POST", "/v1/responses/resp_0/cancel").status_code == 404


def test_background_failure_is_reported_on_fetch(api):
    async def work(client):
        api.engine.fail_at = 1
        begun = (
            await client.post("/v1/responses", json={"input": "hello", "background": True})
        ).json()
        return await ended(client, begun["id"])

    assert in_one_loop(api, work)["error"]["message"] == "made to fail"


def test_background_stream_resumes(api):
    async def work(client):
        whole = await client.post(
            "/v1/responses", json={"input": "hello", "background": True, "stream": True}
        )
        api.engine.gate.clear()
        begun = (
            await client.post("/v1/responses", json={"input": "hello", "background": True})
        ).json()
        path = f"/v1/responses/{begun['id']}?stream=true&starting_after=0"
        reading = asyncio.ensure_future(client.get(path))
        await asyncio.sleep(0)
        api.engine.gate.set()
        return whole, await reading, await client.get(path)

    whole, rest, late = in_one_loop(api, work)
    kinds = [event["type"] for event in stream_events(whole)]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    seen = [json.loads(block.split("data: ")[1])["type"] for block in rest.text.split("\n\n")[:-1]]
    assert seen == kinds[1:]
    assert late.text == rest.text  # held for some minutes
