"""Bodies that are not quite JSON: byte order marks, lone surrogates, compressed ones."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.chat_renderers.surrogates import value_without_lone_surrogates
from builtin_plugins.routes.common.body import decode_json
from core.api import InvalidRequest

JSON = {"Content-Type": "application/json"}


def test_byte_order_mark_of_a_body_is_skipped(api: Any) -> None:
    body = b"\xef\xbb\xbf" + json.dumps({"prompt": "hi"}).encode()
    answer = api.call("POST", "/v1/completions", content=body, headers=JSON)
    assert answer.json()["choices"][0]["text"] == "hi"


@pytest.mark.parametrize(
    "text",
    [
        rb"a\ud83db",
        rb"a\uDC00b",
        rb"a\udc00\ud800b",
        rb"a\ud800\n\\ud800b",
        b"a\xed\xa0\xbdb",
        rb"\ud83d",
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_lone_surrogate_becomes_a_replacement_character(api: Any, text: bytes, path: str) -> None:
    field = b'"input": "%b"' if path.endswith("responses") else b'"messages": [%b]'
    message = b'{"role": "user", "content": "%b"}' % text
    value = text if path.endswith("responses") else message
    body = b"{" + field % value + b', "max_tokens": 50, "model": "echo"}'
    if path.endswith("responses"):
        body = body.replace(b"max_tokens", b"max_output_tokens")
    answer = api.call("POST", path, content=body, headers=JSON)
    assert answer.status_code == 200, answer.text
    assert "\N{REPLACEMENT CHARACTER}" in answer.text or "\\ufffd" in answer.text


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_of_json_is_read(text: str) -> None:
    """Pairs stay characters, and only lone halves are replaced."""
    pairs = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert decode_json(json.dumps([text, "é"]).encode()) == [pairs, "é"]
    assert value_without_lone_surrogates([{text: text}]) == [{pairs: pairs}]


def test_escaped_backslash_is_no_surrogate() -> None:
    assert decode_json(rb'["\\ud800", "\ud800"]') == ["\\ud800", "\N{REPLACEMENT CHARACTER}"]


def test_other_invalid_json_is_still_refused() -> None:
    with pytest.raises(InvalidRequest, match="is not valid JSON"):
        decode_json(rb'["\ud800", ')


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "deflate, gzip"])
def test_compressed_body_is_refused_by_name(api: Any, encoding: str) -> None:
    body = gzip.compress(json.dumps({"prompt": "hi"}).encode())
    headers = {**JSON, "Content-Encoding": encoding}
    answer = api.call("POST", "/v1/completions", content=body, headers=headers)
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "identity"
    message = answer.json()["error"]["message"]
    assert message.startswith(f"Content-Encoding: got {encoding.lower()}; expected none.")


def test_identity_is_no_compression(api: Any) -> None:
    headers = {**JSON, "Content-Encoding": "identity"}
    answer = api.call("POST", "/v1/completions", content=b'{"prompt": "hi"}', headers=headers)
    assert answer.status_code == 200
