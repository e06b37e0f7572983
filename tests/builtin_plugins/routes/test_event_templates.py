"""Templates of events that differ only in their text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builtin_plugins.output_parsers.api import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    ReasoningPiece,
    TextPiece,
)
from builtin_plugins.routes.anthropic.writing import MessageWriter
from builtin_plugins.routes.common.conversation import (
    AnswerFinished,
    AnswerStarted,
    Event,
    TokenLogprobs,
)
from builtin_plugins.routes.common.streams import (
    event,
    numbered_text_event_template,
    text_event_template,
    typed_event,
)
from builtin_plugins.routes.responses.tools import ClientTool
from builtin_plugins.routes.responses.writing import ResponseWriter
from core.api import Logprob
from tests.builtin_plugins.servers.test_http_limits import Served


@pytest.mark.parametrize("model", ["demo", 'text":"', '{"text":""}', "\\"])
@pytest.mark.parametrize("text", ["", "a", '"', "\\", "\n\u2028\x00", "é🦊", '"text":""'])
def test_event_template_matches_full_encoding(model: str, text: str) -> None:
    def data(text: str) -> dict[str, Any]:
        return {
            "model": model,
            "choices": [{"index": 0, "text": text, "finish_reason": None}],
            "usage": None,
        }

    assert text_event_template(data(""), "text")(text) == event(data(text))


@pytest.mark.parametrize("text", ["", '"', '"delta":""', "\n\u2028\x00", "é🦊%d"])
def test_numbered_event_template_matches_full_encoding(text: str) -> None:
    def data(number: int, text: str) -> dict[str, Any]:
        return {
            "type": "a%d",
            "number": number,
            "item": '"number":-1',
            "delta": text,
            "logprobs": [],
        }

    assert numbered_text_event_template(data(-1, ""), "number", "delta")(17, text) == typed_event(
        data(17, text)
    )


SCORED = TokenLogprobs([3], [{3: Logprob(-0.5, 1, "d")}])
ENDED = AnswerFinished("tool_calls", None, 3, 0, 9, 1, context_full=False)
ANSWER: list[list[Event]] = [
    [AnswerStarted(3, 0), ReasoningPiece("I ")],
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
"""Events of an answer, by delivery."""


def test_messages_delta_encoding_matches_full_encoding() -> None:
    short, long = (
        MessageWriter("msg_1", "demo", thoughts="summarized", cached_details=True) for _ in range(2)
    )
    for events in ANSWER:
        expected = b"".join(typed_event(data) for each in events for data in long.write(each))
        assert short.encode(events) == expected
    assert short.answer == long.answer


def test_responses_delta_encoding_matches_full_encoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("builtin_plugins.routes.responses.writing.new_id", lambda kind: f"{kind}_1")
    monkeypatch.setattr("builtin_plugins.routes.responses.writing.now", lambda: 5)
    known = {"weather": ClientTool("function", "weather")}
    short, long = (
        ResponseWriter(
            {"id": "resp_1", "output": []}, known, include=(), num_top=0, cached_details=True
        )
        for _ in range(2)
    )
    for events in ANSWER:
        assert short.encode(events) == b"".join(map(typed_event, long.write_all(events)))
    assert short.response == long.response


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"stream_options": {"include_usage": True}}])
def test_stream_events_have_equal_fields(api: Any, read_events: Any, more: dict[str, Any]) -> None:
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
def test_http_1_0_stream_is_not_chunked(version: str) -> None:
    body = json.dumps({"prompt": "abc", "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/{version}\r\nhost: x\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with Served() as served, served.connect() as connection:
        connection.sendall(head.encode() + body)
        data = b""
        while received := connection.recv(65536):
            data += received
    events = data.partition(b"\r\n\r\n")[2]
    assert events.startswith(b"data: {") == (version == "1.0")
    assert events.count(b"data: {") == 3
    assert events.endswith(b"data: [DONE]\n\n" if version == "1.0" else b"\r\n0\r\n\r\n")
