"""Events of one answer that differ in their text alone are made of what they have in common."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_limits import Served

from builtin_plugins.routes.streams import event, event_with_text


@pytest.mark.parametrize("model", ["demo", 'text":"', '{"text":""}', "\\"])
@pytest.mark.parametrize("text", ["", "a", '"', "\\", "\n\u2028\x00", "é🦊", '"text":""'])
def test_an_event_with_another_text_is_what_it_would_be(model: str, text: str) -> None:
    def data(text: str) -> dict[str, Any]:
        return {"model": model, "choices": [{"index": 0, "text": text, "finish_reason": None}], "usage": None}

    assert event_with_text(data(""), "text")(text) == event(data(text))


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"stream_options": {"include_usage": True}}])
def test_all_events_of_a_stream_have_the_same_fields(api: Any, read_events: Any, more: dict[str, Any]) -> None:
    for reply in (api.complete("abcdef", stream=True, **more), api.chat("abcdef", stream=True, **more)):
        found = [each for each in read_events(reply) if each["choices"]]
        assert len(found) >= 6
        assert {json.dumps(sorted(each)) for each in found} == {json.dumps(sorted(found[0]))}
        texts = [""] * more.get("n", 1)
        for choice in (choice for each in found for choice in each["choices"]):
            texts[choice["index"]] += choice.get("text", choice.get("delta", {}).get("content") or "")
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
