"""Streamed calls: their joined pieces equal the call of the complete text, in every chunking."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.output_parsers.api import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    OutputParser,
    ParseRequest,
)
from builtin_plugins.output_parsers.testing import Parsed, Reader
from tests.builtin_plugins.output_parsers.runtime.output_cases import (
    FORMATS,
    KINDS,
    families,
    reader_of,
)
from tests.builtin_plugins.output_parsers.runtime.output_variations import markers_of, variations

TOOLS = FORMATS["tool_parsers"]


def assert_streaming_agrees(reader: Reader, text: str, count: int) -> None:
    """Assert that streaming equals whole parsing, and that broken calls are invalid JSON."""
    whole = reader.read([reader.piece(text)])
    streamed = reader.stream_calls.check(text, count=count)
    assert (streamed.calls, streamed.reasoning) == (whole.calls, whole.reasoning), text
    assert streamed.broken or streamed.content == whole.content, text
    assert len({*streamed.broken}) == len(streamed.broken), text
    for _, arguments in streamed.broken:
        with pytest.raises(ValueError, match="line 1"):
            json.loads(arguments)


@pytest.fixture(params=[0, pytest.param(10, marks=pytest.mark.slow)])
def count(request: pytest.FixtureRequest) -> int:
    """How many random chunkings."""
    return int(request.param)


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        pytest.param(kind, found.file, id=f"{kind}/{found.file}")
        for kind in KINDS
        for found in families(kind)
    ],
)
def test_streamed_calls_equal_parsed_calls(kind: str, file: str, count: int) -> None:
    family = next(found for found in families(kind) if found.file == file)
    for number, case in enumerate(family.cases):
        by_id = number % 2 == 0 and case.special is None
        assert_streaming_agrees(
            reader_of(kind, family.parsers[0], case, by_id=by_id), case.text, count
        )


@pytest.mark.parametrize("file", [found.file for found in families("tool_parsers")])
def test_streamed_calls_equal_parsed_calls_for_variations(file: str, count: int) -> None:
    family = next(found for found in families("tool_parsers") if found.file == file)
    plain = [
        case for case in family.cases if case.calls and not case.malformed and len(case.text) < 400
    ]
    for case in plain[: 1 + count]:
        reader = reader_of("tool_parsers", family.parsers[0], case)
        for _, text in [*variations(case.text, markers_of(reader.tools))][:: 1 if count else 5]:
            assert_streaming_agrees(reader, text, count=0)


def test_streamed_call_events_are_in_order() -> None:
    call = '{"name": "search", "arguments": {"note": "ab", "days": 3}}'
    text = f"So: <tool_call>{call}</tool_call> Done."
    parser = OutputParser(ParseRequest(stream_calls=True), tools=TOOLS["hermes"])
    found = [delta.pieces for delta in [*map(parser.feed, text), parser.finish()]]
    kinds = [type(piece) for pieces in found for piece in pieces]
    first = kinds.index(CallBegun)
    last = kinds.index(CallEnded)
    assert {*kinds[first + 1 : last]} == {ArgumentsPiece}
    streamed = "".join(
        piece.text for pieces in found for piece in pieces if isinstance(piece, ArgumentsPiece)
    )
    assert streamed == '{"note": "ab", "days": 3}'
    assert kinds.count(CallBegun) == kinds.count(CallEnded) == 1


PARAMETERS: dict[str, Any] = {
    "s": {"type": "string"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "i": {"type": "integer"},
    "either": {"type": ["string", "integer"]},
    "list": {
        "type": "array",
        "items": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
    "object": {"type": "object", "properties": {"s": {"type": "string"}, "b": {"type": "boolean"}}},
}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": PARAMETERS}},
}
KEYS = st.sampled_from([*PARAMETERS, "arguments", "unknown"])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from(["null", "5", '"x"']),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)
WRITTEN_VALUES = VALUES.flatmap(
    lambda value: st.sampled_from(
        [json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1), "tru", '"\\d\\ud83d"']
    )
)
PAIRS = st.lists(st.tuples(KEYS, WRITTEN_VALUES), max_size=4)


@settings(deadline=None, max_examples=60)
@given(PAIRS, st.sampled_from(["", "}", '"', "</tool_call>"]))
def test_streamed_json_equals_parsed_arguments(pairs: list[tuple[str, str]], rest: str) -> None:
    """Duplicate keys, wrappers, wrong types, invalid escapes, unbalanced brackets."""
    arguments = "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
    request = ParseRequest([TOOL])
    assert_streaming_agrees(
        Reader(tools=TOOLS["hermes"], request=request),
        f'<tool_call>{{"name": "f", "arguments": {arguments}{rest}',
        1,
    )
    assert_streaming_agrees(
        Reader(tools=TOOLS["mistral"], request=request), f"[TOOL_CALLS]f{arguments}{rest}", 1
    )


TEXTS = st.text(st.sampled_from('ab \n\t<>/"\\nul5'), max_size=8) | st.sampled_from(
    ["null", " none", '"x"', "[1]", "true"]
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(KEYS, TEXTS), max_size=4),
    st.sampled_from(["", "</function>", "</function></tool_call>"]),
)
def test_streamed_tags_equal_parsed_arguments(pairs: list[tuple[str, str]], rest: str) -> None:
    request = ParseRequest([TOOL])
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
    assert_streaming_agrees(
        Reader(tools=TOOLS["qwen3_coder"], request=request),
        f"<tool_call>\n<function=f>\n{values}{rest}",
        1,
    )
    values = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs
    )
    assert_streaming_agrees(
        Reader(tools=TOOLS["glm45"], request=request),
        f"<tool_call>f\n{values}{rest}</tool_call>",
        1,
    )


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        # the streamed text is cut off: it stays, and its JSON is never closed
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"s": "one two',
            Parsed(broken=(("f", '{"s": "one two'),)),
        ),
        (
            "qwen3_coder",
            "<function=f><parameter=s>one two",
            Parsed(broken=(("f", '{"s": "one two'),)),
        ),
        # the part that was not streamed is content
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"s": "a", "i": 12',
            Parsed(', "i": 12', broken=(("f", '{"s": "a"'),)),
        ),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"s": "a"}} and so on.</tool_call>',
            Parsed("}} and so on.</tool_call>", broken=(("f", '{"s": "a"'),)),
        ),
        # calls after it and within it count
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"s": "a\n<tool_call>{"name": "f", "arguments": '
            '{"i": 1}}</tool_call>',
            Parsed(calls=(("f", {"i": 1}),), broken=(("f", '{"s": "a\\n<tool_call>{"'),)),
        ),
        # nothing is streamed before a name and an argument are known
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"s',
            Parsed('<tool_call>{"name": "f", "arguments": {"s'),
        ),
        ("glm45", "<tool_call>is what I would write.", Parsed("<tool_call>is what I would write.")),
    ],
)
def test_streamed_part_of_a_broken_call_stays(name: str, text: str, found: Parsed) -> None:
    reader = Reader(tools=TOOLS[name], request=ParseRequest([TOOL], stream_calls=True))
    assert reader.check(text, count=5) == found
