"""Families on channels have a table for their thoughts and one for their calls: where both speak,
they say the same.
"""

from __future__ import annotations

import pytest

from builtin_plugins.output_parsers.reasoning import channels as thoughts
from builtin_plugins.output_parsers.tools import channels as calls

HEADERS = {
    "HARMONY": (
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|start|>assistant to=functions.f<|channel|>analysis<|message|>",
        "<|channel|>analysis to=python<|message|>",
    ),
    "INKLING": ("<|content_thinking|>", "<|content_text|>", "tool<|content_invoke_tool_json|>"),
    "KIMI_K3": (
        "<|open|>think<|sep|>",
        "<|open|>response<|sep|>",
        "<|open|>message<|sep|>",
        "<|open|>tools<|sep|>",
    ),
    "MUSE": (
        "<|start|>assistant<|message|>",
        "<|start|>assistant to=self<|message|>",
        "<|start|>assistant to=user<|message|>",
        "<|start|>assistant to=commentary<|message|>",
        "<|start|>assistant to=developer<|message|>",
        "<|start|>assistant to=get_weather<|message|>",
        "<|start|>assistant to=user_list<|message|>",
    ),
}


@pytest.mark.parametrize("family", HEADERS)
def test_both_tables_tell_messages_alike(family: str) -> None:
    one = getattr(thoughts, family)
    other = getattr(calls, family)
    assert (one.starts, one.stops, one.apart) == (other.starts, other.stops, other.apart)
    assert {*one.heads} <= {*other.heads}
    assert {*one.goes_on} <= {*other.goes_on}
    for header in HEADERS[family]:
        assert one.kind(header) == other.kind(header), header
