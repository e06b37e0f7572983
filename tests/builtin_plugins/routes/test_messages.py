"""`/v1/messages`: Anthropic's requests, answers and events."""

from __future__ import annotations

import json

import msgspec
import pytest

from builtin_plugins.routes.anthropic.fields import CountFields
from builtin_plugins.routes.anthropic.reading import messages_of

ON = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "think"}
ADD = {"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
THINK = {"type": "enabled", "budget_tokens": 1024}


def send(api, content="hello", path="/v1/messages", headers=None, **fields):
    messages = fields.pop("messages", [{"role": "user", "content": content}])
    body = {"messages": messages, "max_tokens": 200, **fields}
    return api.call("POST", path, json=body, headers=headers)


def stream_events(reply):
    """Return the events of a stream; each is named by its type."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in reply.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def read(**fields):
    return messages_of(msgspec.convert(fields, CountFields))


def test_answer_has_protocol_fields(api):
    body = send(api).json()
    assert body.pop("id").startswith("msg_")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "echo",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 5,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


def test_cached_tokens_are_counted_separately(make_api):
    usage = send(make_api(enable_prompt_tokens_details=True)).json()["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (4, 1)


def test_thoughts_text_and_calls_are_content_blocks(make_api):
    content = f"<think>hm</think>Adding.\n{CALL}"
    body = send(make_api(**ON), content, tools=[ADD], thinking=THINK).json()
    thinking, text, call = body["content"]
    assert (thinking["type"], thinking["thinking"], bool(thinking["signature"])) == (
        "thinking",
        "hm",
        True,
    )
    assert text == {"type": "text", "text": "Adding."}
    assert (call["type"], call["name"], call["input"], bool(call["id"])) == (
        "tool_use",
        "add",
        {"a": 1},
        True,
    )
    assert body["stop_reason"] == "tool_use"
    assert body["usage"]["output_tokens_details"]["thinking_tokens"] == 2


def test_stream_has_official_events_in_order(make_api):
    content = f"<think>hm</think>Adding.\n{CALL}"
    events = stream_events(send(make_api(**ON), content, tools=[ADD], thinking=THINK, stream=True))
    kinds = [event.get("delta", {}).get("type") or event["type"] for event in events]
    order = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    block = ("content_block_start", "{}", "content_block_stop")
    assert order == [
        "message_start",
        "ping",
        *("content_block_start", "thinking_delta", "signature_delta", "content_block_stop"),
        *(part.format("text_delta") for part in block),
        *(part.format("input_json_delta") for part in block),
        "message_delta",
        "message_stop",
    ]
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [(block["type"], block.get("input")) for block in starts] == [
        ("thinking", None),
        ("text", None),
        ("tool_use", {}),
    ]
    texts = ["", "", ""]
    for event in events:
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            texts[event["index"]] += (
                delta.get("thinking") or delta.get("text") or delta.get("partial_json") or ""
            )
    assert texts == ["hm", "Adding.", '{"a": 1}']
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["input_tokens"] == len(content)
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.parametrize(
    ("fields", "thoughts"),
    [
        ({}, None),
        ({"thinking": {"type": "adaptive"}}, "hm"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, ""),
    ],
)
def test_thinking_option_controls_visible_thoughts(make_api, fields, thoughts):
    content = send(make_api(**ON), "<think>hm</think>yes", **fields).json()["content"]
    assert content[-1] == {"type": "text", "text": "yes"}
    assert [block["thinking"] for block in content[:-1]] == ([] if thoughts is None else [thoughts])


def test_omitted_thoughts_return_in_signature(make_api):
    thinking = {"type": "adaptive", "display": "omitted"}
    content = send(make_api(**ON), "<think>hm</think>yes", thinking=thinking).json()["content"]
    (message,) = read(messages=[{"role": "assistant", "content": content}])
    assert message == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


def test_stop_reasons_match_limits_and_stop_sequences(make_api):
    api = make_api()
    assert send(api, max_tokens=2).json()["stop_reason"] == "max_tokens"
    send(api, stop_sequences=["x"])
    assert api.engine.sampling[-1].stop == ["x"]
    assert api.engine.sampling[-1].max_tokens == 200


def test_thinking_and_budget_reach_template_and_engine(make_api):
    api = make_api(**ON)
    send(api, thinking=THINK, output_config={"effort": "high"})
    kwargs = api.engine.rendered[0]["template_kwargs"]
    assert kwargs == {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}
    assert api.engine.sampling[0].extra_args["thinking_token_budget"] == 1024
    assert send(make_api(), thinking=THINK).status_code == 200


@pytest.mark.parametrize(
    ("choice", "forced", "calls"),
    [({"type": "any"}, True, 2), ({"type": "any", "disable_parallel_tool_use": True}, True, 1)],
)
def test_tool_choice_forces_call(make_api, choice, forced, calls):
    api = make_api(**ON)
    body = send(api, CALL + CALL, tools=[ADD], tool_choice=choice).json()
    assert [block["name"] for block in body["content"]] == ["add"] * calls
    assert (api.engine.sampling[0].structured_outputs is not None) == forced


def test_output_format_constrains_answer(api):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    send(api, "{}", output_config={"format": {"type": "json_schema", "schema": schema}})
    send(api, "{}", output_format={"type": "json_schema", "schema": schema})
    assert [params.structured_outputs.json for params in api.engine.sampling] == [schema, schema]


def test_tool_results_become_separate_messages():
    messages = read(
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc=1"},
            {"type": "text", "text": "Be kind."},
        ],
        messages=[
            {"role": "user", "content": "Hello"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "there", "cache_control": {"type": "ephemeral"}}
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "?"},
                    {"type": "redacted_thinking", "data": "?"},
                    {"type": "text", "text": "Wait."},
                    {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "2"}],
                    },
                    {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
                    {"type": "text", "text": "Go on."},
                    {"type": "document", "source": {"type": "text", "data": "words"}, "title": "T"},
                ],
            },
        ],
    )
    assert messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello\nthere"},
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "2"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no"},
        {"role": "user", "content": "Go on.\nT\nwords"},
    ]


def test_answer_continues_prefilled_message(api):
    send(api, messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert api.engine.rendered[0]["continue_final_message"] is True
    assert api.engine.rendered[0]["add_generation_prompt"] is False


def test_claude_code_request_is_accepted(make_api):
    api = make_api(**ON)
    reply = send(
        api,
        path="/v1/messages?beta=true",
        headers={
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219",
            "x-api-key": "none",
        },
        system=[
            {
                "type": "text",
                "text": "You are an agent.",
                "cache_control": {"type": "ephemeral", "ttl": "1h"},
            }
        ],
        metadata={"user_id": "user_1"},
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "medium"},
        temperature=1,
        tools=[{**ADD, "description": "adds", "eager_input_streaming": True, "strict": False}],
        speed=None,
        stream=True,
    )
    assert reply.status_code == 200
    assert "X-Ignored-Fields" not in reply.headers
    assert stream_events(reply)[-1] == {"type": "message_stop"}


def test_count_tokens_matches_prompt(api):
    body = {"messages": [{"role": "user", "content": "hello"}], "tools": [ADD]}
    assert api.call("POST", "/v1/messages/count_tokens", json=body).json() == {"input_tokens": 5}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "a b"}]}, "tools[0].name"),
        (
            {"tools": [{"name": "a", "input_schema": {"type": "array"}}]},
            "tools[0].input_schema.type",
        ),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "often"}}, "tool_choice.type"),
        ({"messages": []}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].source",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}
                ]
            },
            "messages[0].content[0]",
        ),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"container": "c"}, "container"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
    ],
)
def test_errors_name_anthropic_fields(make_api, fields, param):
    reply = send(make_api(**ON), **fields)
    body = reply.json()
    assert (reply.status_code, body["type"], body["error"]["type"]) == (
        400,
        "error",
        "invalid_request_error",
    )
    assert body["error"]["param"] == param
    assert body["error"]["message"].startswith(f"{param}: ")


def test_errors_have_anthropic_types(make_api):
    api = make_api(api_key=["one"])
    assert send(api).json()["error"]["type"] == "authentication_error"
    key = {"x-api-key": "one"}
    assert send(api, headers=key).status_code == 200
    assert send(api, headers=key, model="other").json()["error"]["type"] == "not_found_error"
    api.engine.fail_at = 0
    assert send(api, headers=key).json()["error"]["type"] == "api_error"


def test_broken_stream_ends_with_error_event(api):
    api.engine.fail_at = 2
    events = stream_events(send(api, stream=True))
    assert events[-1]["type"] == "error"
    assert (events[-1]["error"]["type"], events[-1]["error"]["message"]) == (
        "api_error",
        "made to fail",
    )
    assert [event["type"] for event in events].count("message_stop") == 0


def test_model_name_pattern_serves_fixed_names(api):
    api.engine.served_names = ["echo", "claude-*"]
    assert send(api, model="claude-opus-9").json()["model"] == "claude-opus-9"
    assert send(api, model="opus").status_code == 404
    assert [card["id"] for card in api.get("/v1/models").json()["data"]] == ["echo"]
