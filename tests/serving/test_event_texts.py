"""Events of one answer that differ in their text alone are made of what they have in common."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_limits import Served

from builtin_plugins.routes.anthropic.writing import MessageWriter
from builtin_plugins.routes.conversation.events import Begun, Ended, Event, Scored
from builtin_plugins.routes.responses.tools import Known
from builtin_plugins.routes.responses.writing import ResponseWriter
from builtin_plugins.routes.streams import (
    event,
    event_with_text,
    numbered_event_with_text,
    typed_event,
)
from core.api import ArgumentsPiece, CallBegun, CallEnded, Logprob, ReasoningPiece, TextPiece


@pytest.mark.parametrize("model", ["demo", 'text":"', '{"text":""}', "\\"])
@pytest.mark.parametrize("text", ["", "a", '"', "\\", "\n\u2028\x00", "é🦊", '"text":""'])
def test_an_event_with_another_text_is_what_it_would_be(model: str, text: str) -> None:
    def data(text: str) -> dict[str, Any]:
        return {
            "model": model,
            "choices": [{"index": 0, "text": text, "finish_reason": None}],
            "usage": None,
        }

    assert event_with_text(data(""), "text")(text) == event(data(text))


@pytest.mark.parametrize("text", ["", '"', '"delta":""', "\n\u2028\x00", "é🦊%d"])
def test_a_numbered_event_with_another_text_is_what_it_would_be(text: str) -> None:
    def data(number: int, text: str) -> dict[str, Any]:
        return {
            "type": "a%d",
            "number": number,
            "item": '"number":-1',
            "delta": text,
            "logprobs": [],
        }

    assert numbered_event_with_text(data(-1, ""), "number", "delta")(17, text) == typed_event(
        data(17, text)
    )


SCORED = Scored([3], [{3: Logprob(-0.5, 1, "d")}])
ENDED = Ended("tool_calls", None, 3, 0, 9, 1, context_full=False)
ANSWER: list[list[Event]] = [
    [Begun(3, 0), ReasoningPiece("I ")],
    [ReasoningPiece("think")],
    [TextPiece("")],
    [TextPiece("a")],
    [TextPiece('"text":""')],
    [TextPiece("b"), TextPiece("c")],
    [SCORED, TextPiece("d")],
    [SCORED],
    [TextPiece("e")],
    [CallBegun(0, "weather", "call_1"), ArgumentsPiece(0, "{")],
    [ArgumentsPiece(0, "}")],
    [CallEnded(0, True)],
    [TextPiece("f")],
    [TextPiece("g")],
    [ENDED],
]
"""By delivery, what an answer brings."""


def test_the_short_encoding_tells_messages_as_the_long_one_does() -> None:
    short, long = (
        MessageWriter("msg_1", "demo", thoughts="summarized", cached_details=True) for _ in range(2)
    )
    for events in ANSWER:
        told = b"".join(typed_event(data) for each in events for data in long.take(each))
        assert short.told(events) == told
    assert short.answer == long.answer


def test_the_short_encoding_tells_responses_as_the_long_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("builtin_plugins.routes.responses.writing.new_id", lambda kind: f"{kind}_1")
    monkeypatch.setattr("builtin_plugins.routes.responses.writing.now", lambda: 5)
    known = {"weather": Known("function", "weather")}
    short, long = (
        ResponseWriter(
            {"id": "resp_1", "output": []}, known, include=(), num_top=0, cached_details=True
        )
        for _ in range(2)
    )
    for events in ANSWER:
        assert short.encoded(events) == b"".join(map(typed_event, long.told(events)))
    assert short.response == long.response


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"stream_options": {"include_usage": True}}])
def test_all_events_of_a_stream_have_the_same_fields(
    api: Any, read_events: Any, more: dict[str, Any]
) -> None:
    for reply in (
        api.complete("abcdef", stream=True, **more),
        api.chat("abcdef", stream=True, **more),
    ):
        found = [each for each in read_events(reply) if each["choices"]]
        assert len(found) >= 6
        assert {json.dumps(sorted(each)) for each in found} == {json.dumps(sorted(found[0]))}
        texts = [""] * more.get("n", 1)
        for choice in (choice for each in found for choice in each["choices"]):
            texts[choice["index"]] += choice.get(
                "text", choice.get("delta", {}).get("content") or ""
            )
        assert texts == ["abcdef"] * len(texts)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_of_http_1_0_gets_events_without_chunks(version: str) -> None:
    body = json.dumps({"prompt": "abc", "stream": True}).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with Served() as served, served.connect() as connection:
        connection.sendall(head.encode() + body)
        data = b""
        while received := connection.recv(65536):
            data += received
    events = data.partition(b"\r\n\r\n")[2]
    assert events.startswith(b"data: {") == (version == "1.0")
    assert events.count(b"data: {") == 3
    assert events.endswith(b"data: [DONE]\n\n" if version == "1.0" else b"\r\n0\r\n\r\n")
