"""JSON headers of files."""

from __future__ import annotations

import json

import pytest

from builtin_plugins.weight_loaders.safetensors.json_header import read_header


def test_json_header_is_decoded():
    assert read_header('{"ä": [1, {"b": null}], "c": {"b": 2}}'.encode()) == {
        "ä": [1, {"b": None}],
        "c": {"b": 2},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1, "b": 2, "a": 1}', "it names 'a' twice"),
        (b'[{"a": {"x": 1, "x": 2}}]', "it names 'x' twice"),
        (b"[" * 100_000, "nested too deep"),
        (b"{", "Expecting"),
        (b'{"a": "\xff"}', "utf-8"),
        (json.dumps({"a": 1}).encode("utf-16"), "utf-8"),
    ],
)
def test_invalid_json_headers_are_rejected(text: bytes, message: str):
    with pytest.raises(ValueError, match=message):
        read_header(text)
