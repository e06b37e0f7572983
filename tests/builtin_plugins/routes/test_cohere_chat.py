"""`/v2/chat`: Cohere's requests, answers and events."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from builtin_plugins.output_parsers.api import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    ReasoningPiece,
    TextPiece,
)
from builtin_plugins.routes.cohere.fields import ChatFields
from builtin_plugins.routes.cohere.reading import messages_of, template_kwargs
from builtin_plugins.routes.cohere.writing import ChatWriter
from builtin_plugins.routes.common.conversation import (
    AnswerFinished,
    AnswerStarted,
    Event,
    TokenLogprobs,
)
from builtin_plugins.routes.common.streams import typed_event
from core.api import InvalidRequest, Logprob

ON = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "think"}
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
SCRIPTED = f"<think>hm</think>Adding.\n{CALL}"


def send(api: Any, content: str = "hello", **fields: Any) -> httpx.Response:
    messages = fields.pop("messages", [{"role": "user", "content": content}])
    reply: httpx.Response = api.call("POST", "/v2/chat", json={"messages": messages, **fields})
    return reply


def stream_events(reply: httpx.Response) -> list[dict[str, Any]]:
    events = []
    for block in reply.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def read(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return messages_of(msgspec.convert({"messages": list(messages), **fields}, ChatFields))


def test_answer_has_protocol_fields(api: Any) -> None:
    body = send(api).json()
    assert body.pop("id").startswith("chat-")
    counts = {"input_tokens": 5, "output_tokens": 5}
    assert body == {
        "finish_reason": "COMPLETE",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "hello"}]},
        "usage": {"billed_units": counts, "tokens": counts},
    }


def test_cohere_answer_has_thoughts_text_and_calls(make_api: Any) -> None:
    body = send(make_api(**ON), SCRIPTED, tools=[ADD]).json()
    assert body["finish_reason"] == "TOOL_CALL"
    assert body["message"]["content"] == [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Adding."},
    ]
    (call,) = body["message"]["tool_calls"]
    assert call.pop("id")
    assert call == {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_stream_has_official_events_in_order(make_api: Any) -> None:
    events = stream_events(send(make_api(**ON), SCRIPTED, tools=[ADD], stream=True))
    kinds = [event["type"] for event in events]
    part = ["content-start", "content-delta", "content-end"]
    assert [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind] == [
        "message-start",
        *part,
        *part,
        *("tool-call-start", "tool-call-delta", "tool-call-end"),
        "message-end",
    ]
    contents = [
        event["delta"]["message"]["content"] for event in events if event["type"] == "content-delta"
    ]
    assert "".join(content.get("thinking", "") for content in contents) == "hm"
    assert "".join(content.get("text", "") for content in contents) == "Adding."
    (start,) = (event for event in events if event["type"] == "tool-call-start")
    assert start["delta"]["message"]["tool_calls"]["function"] == {"name": "add", "arguments": ""}
    calls = [
        event["delta"]["message"]["tool_calls"]
        for event in events
        if event["type"] == "tool-call-delta"
    ]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1}'
    assert events[-1]["delta"]["finish_reason"] == "TOOL_CALL"
    assert events[-1]["id"] == events[0]["id"]


def test_disabled_thinking_omits_thoughts() -> None:
    writer = ChatWriter("chat-1", thoughts=False, cached_details=False)
    writer.record([ReasoningPiece("hm"), TextPiece("yes")])
    assert [part["type"] for part in writer.answer["message"]["content"]] == ["text"]


def test_finish_reasons_match_limits_and_stop_strings(api: Any) -> None:
    assert send(api, "abcdef", max_tokens=2).json()["finish_reason"] == "MAX_TOKENS"
    writer = ChatWriter("chat-1", thoughts=True, cached_details=True)
    writer.record([AnswerFinished("stop", "d", 3, 2, 9, 1, context_full=False)])
    assert (writer.answer["finish_reason"], writer.answer["usage"]["cached_tokens"]) == (
        "STOP_SEQUENCE",
        2,
    )


def test_calls_and_results_become_template_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    found = read(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "1 and 1?"}]},
        {"role": "assistant", "tool_plan": "I add.", "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "document", "document": {"data": {"sum": 2}}}],
        },
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "2"}],
        },
    )
    called = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    assert found == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 and 1?"},
        {"role": "assistant", "content": "I add.", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"sum": 2}'},
        {"role": "assistant", "content": "2", "reasoning_content": "hm"},
    ]


def test_documents_reach_the_template() -> None:
    given = ["a text", {"data": {"title": "t", "text": "x"}, "id": "1"}, {"data": "plain"}]
    fields = msgspec.convert({"messages": [], "documents": given}, ChatFields)
    assert template_kwargs(fields)["documents"] == [
        {"text": "a text"},
        {"title": "t", "text": "x"},
        {"text": "plain"},
    ]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "tool", "content": "2"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].image_url"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "[1]"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_misplaced_message_content_is_rejected(message: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(message)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"p": 2}, "p"),
        ({"k": -1}, "k"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
        ({"tool_choice": "SOME"}, "tool_choice"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role"),
    ],
)
def test_errors_name_cohere_fields(api: Any, fields: dict[str, Any], field: str) -> None:
    reply = send(api, **fields)
    assert reply.status_code == 400, reply.text
    assert reply.json()["param"] == field
    assert field in reply.json()["message"]


def test_delta_encoding_matches_full_encoding() -> None:
    scored = TokenLogprobs([3], [{3: Logprob(-0.5, 1, "d")}])
    ended = AnswerFinished("stop", None, 3, 0, 9, 1, context_full=False)
    answer: list[list[Event]] = [
        [AnswerStarted(3, 0), ReasoningPiece("I ")],
        [TextPiece("a")],
        [TextPiece('"text":""')],
        [TextPiece("b"), TextPiece("c")],
        [CallBegun(0, "add", "call_1"), ArgumentsPiece(0, "{}")],
        [CallEnded(0, True)],
        [scored],
        [scored, TextPiece("dd")],
        [scored, TextPiece("f")],
        [ended],
    ]
    short, long = (ChatWriter("chat-1", thoughts=True, cached_details=False) for _ in range(2))
    for events in answer:
        assert short.encode(events) == b"".join(
            typed_event(data) for each in events for data in long.write(each)
        )
    assert short.answer == long.answer
    assert short.answer["logprobs"] == [{"text": "d", "token_ids": [3], "logprobs": [-0.5]}] * 3
