"""Calls that are told while they are written: their pieces are the call that is read of the whole,
however text comes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from formats import FORMATS, reader_of
from hypothesis import given, settings
from hypothesis import strategies as st
from variations import markers_of, variations
from written import KINDS, families

from core.api import ArgumentsPiece, CallBegun, CallEnded, OutputParser, ParseRequest
from core.testing.parsing import Parsed, Reader

TOOLS = FORMATS["tool_parsers"]


def agrees(reader: Reader, text: str, count: int) -> None:
    """Assert that a text says the same told in pieces, in every chunking, and that what broke can't
    be taken for a call.
    """
    whole = reader.read([reader.piece(text)])
    told = reader.in_pieces.check(text, count=count)
    assert (told.calls, told.reasoning) == (whole.calls, whole.reasoning), text
    assert told.broken or told.content == whole.content, text
    assert len({*told.broken}) == len(told.broken), text
    for _, arguments in told.broken:
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
def test_what_is_told_is_what_is_read(kind: str, file: str, count: int) -> None:
    family = next(found for found in families(kind) if found.file == file)
    for number, case in enumerate(family.cases):
        by_id = number % 2 == 0 and case.special is None
        agrees(reader_of(kind, family.parsers[0], case, by_id=by_id), case.text, count)


@pytest.mark.parametrize("file", [found.file for found in families("tool_parsers")])
def test_whatever_becomes_of_a_text_what_is_told_is_what_is_read(file: str, count: int) -> None:
    family = next(found for found in families("tool_parsers") if found.file == file)
    plain = [
        case for case in family.cases if case.calls and not case.malformed and len(case.text) < 400
    ]
    for case in plain[: 1 + count]:
        reader = reader_of("tool_parsers", family.parsers[0], case)
        for _, text in [*variations(case.text, markers_of(reader.tools))][:: 1 if count else 5]:
            agrees(reader, text, count=0)


def test_a_call_begins_is_told_and_ends_in_order() -> None:
    text = 'So: <tool_call>{"name": "search", "arguments": {"note": "ab", "days": 3}}</tool_call> Done.'
    parser = OutputParser(ParseRequest(in_pieces=True), tools=TOOLS["hermes"])
    found = [delta.pieces for delta in [*map(parser.feed, text), parser.finish()]]
    kinds = [type(piece) for pieces in found for piece in pieces]
    first = kinds.index(CallBegun)
    last = kinds.index(CallEnded)
    assert {*kinds[first + 1 : last]} == {ArgumentsPiece}
    told = "".join(
        piece.text for pieces in found for piece in pieces if isinstance(piece, ArgumentsPiece)
    )
    assert told == '{"note": "ab", "days": 3}'
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
def test_json_is_told_as_it_is_noted(pairs: list[tuple[str, str]], rest: str) -> None:
    """Keys twice, wrappers, values of other types than stated, escapes that are none, brackets too
    few or too many.
    """
    arguments = "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
    request = ParseRequest([TOOL])
    agrees(
        Reader(tools=TOOLS["hermes"], request=request),
        f'<tool_call>{{"name": "f", "arguments": {arguments}{rest}',
        1,
    )
    agrees(Reader(tools=TOOLS["mistral"], request=request), f"[TOOL_CALLS]f{arguments}{rest}", 1)


TEXTS = st.text(st.sampled_from('ab \n\t<>/"\\nul5'), max_size=8) | st.sampled_from(
    ["null", " none", '"x"', "[1]", "true"]
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(KEYS, TEXTS), max_size=4),
    st.sampled_from(["", "</function>", "</function></tool_call>"]),
)
def test_tags_are_told_as_they_are_noted(pairs: list[tuple[str, str]], rest: str) -> None:
    request = ParseRequest([TOOL])
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
    agrees(
        Reader(tools=TOOLS["qwen3_coder"], request=request),
        f"<tool_call>\n<function=f>\n{values}{rest}",
        1,
    )
    values = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs
    )
    agrees(
        Reader(tools=TOOLS["glm45"], request=request),
        f"<tool_call>f\n{values}{rest}</tool_call>",
        1,
    )


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        # the text that is being written is cut off: it stays, and its JSON is never closed
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
        # what was not told is content
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
        # a call behind it, and one in it, count
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"s": "a\n<tool_call>{"name": "f", "arguments": '
            '{"i": 1}}</tool_call>',
            Parsed(calls=(("f", {"i": 1}),), broken=(("f", '{"s": "a\\n<tool_call>{"'),)),
        ),
        # nothing is told before a name and an argument are known
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"s',
            Parsed('<tool_call>{"name": "f", "arguments": {"s'),
        ),
        ("glm45", "<tool_call>is what I would write.", Parsed("<tool_call>is what I would write.")),
    ],
)
def test_of_a_call_that_breaks_what_was_told_stays(name: str, text: str, found: Parsed) -> None:
    reader = Reader(tools=TOOLS[name], request=ParseRequest([TOOL], in_pieces=True))
    assert reader.check(text, count=5) == found
