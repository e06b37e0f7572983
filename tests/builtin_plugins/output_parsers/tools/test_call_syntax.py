"""Properties of the call syntax of every family, in any chunking."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from builtin_plugins.output_parsers.api import (
    ArgumentsPiece,
    OutputParser,
    ParsedDelta,
    ParseRequest,
    ToolFormat,
    fit_format,
)
from builtin_plugins.output_parsers.testing import NUM_CHUNKINGS, Parsed, Reader
from core.plugin import load_plan, make_plan
from tests.builtin_plugins.output_parsers.tools.call_syntaxes import (
    DESCRIBED,
    SYNTAXES,
    Call,
    CallSyntax,
)

PARAMETERS = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "share": {"type": "number"},
    "sure": {"type": "boolean"},
    "where": {"type": "object"},
    "lines": {"type": "array"},
    "note": {"type": "string"},
}
REQUEST = ParseRequest(
    tools=[
        {
            "type": "function",
            "function": {"name": name, "parameters": {"type": "object", "properties": PARAMETERS}},
        }
        for name in ("get_weather", "search")
    ]
)
OSLO: Call = ("get_weather", {"city": "Oslo", "days": 3})
SEARCH: Call = ("search", {"city": "S\u00e3o Paulo"})
CASES: dict[str, list[Call]] = {
    "one": [OSLO],
    "parallel": [OSLO, SEARCH, OSLO],
    "no arguments": [("search", {})],
    "nested": [
        (
            "search",
            {"where": {"a": [1, {"b": None}], "c": {"d": [[]]}}, "lines": [1, 2.5, "x", False]},
        )
    ],
    "unicode": [("search", {"city": "gr\u00f6\u00dfer \u6f22\u5b57 \U0001f600", "note": "\u2028"})],
    "types": [("search", {"days": 5, "share": 0.5, "sure": True, "city": "5", "note": "true"})],
    "marks in text": [("search", {"note": 'if (a < b) { say("it\'s\\n") } ] <b>&amp;</b> | ```'})],
    "lines in text": [("search", {"note": "def f():\n    return 1\n\n\n# end"})],
    "unknown tool": [("no_such-tool.v2", {"city": "Oslo"})],
}
FORMATS: dict[str, ToolFormat] = {
    registered.entry.name: fit_format(registry.load(registered), DESCRIBED)
    for registry in [load_plan(make_plan(["none", "tool_parsers"]))]
    for registered in registry.entries("tool_parsers")
}


@pytest.fixture(params=[4, pytest.param(NUM_CHUNKINGS, marks=pytest.mark.slow)])
def count(request: pytest.FixtureRequest) -> int:
    """Number of random chunkings."""
    return int(request.param)


@pytest.fixture(params=SYNTAXES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def syntax(name: str) -> CallSyntax:
    return SYNTAXES[name]


@pytest.fixture
def reader(name: str) -> Reader:
    return Reader(tools=FORMATS[name], request=REQUEST)


def test_every_parser_has_a_syntax_writer() -> None:
    assert set(FORMATS) - set(SYNTAXES) == set()


@pytest.mark.parametrize("case", CASES)
def test_calls_are_parsed(case: str, reader: Reader, syntax: CallSyntax, count: int) -> None:
    assert reader.check(syntax.write(*CASES[case]), count=count) == parsed(*CASES[case])


def test_text_around_calls_is_content(reader: Reader, syntax: CallSyntax, count: int) -> None:
    found = reader.check(
        f"Let me [look]:\n{syntax.write(OSLO)}\nThere, {{you}} see. <end>", count=count
    )
    assert found == parsed(OSLO, content="Let me [look]:\nThere, {you} see. <end>")


def test_text_alone_is_content(reader: Reader, count: int) -> None:
    text = 'Take `f(x)`, [1, 2], [see](there) or {"a": 1}: 1 < 2 > 0.\n\n[f(x)]\n{"name": "x"}\n'
    assert reader.check(text, count=count) == Parsed(content=text)


def test_truncated_call_is_content(reader: Reader, syntax: CallSyntax, count: int) -> None:
    text = syntax.write(OSLO)
    for cut in range(1, len(text), max(1, len(text) // 7)):
        found = reader.check(text[:cut], count=count // 10)
        first = dict(
            [*OSLO[1].items()][:1]
        )  # an output may end after the first argument; that is a complete call
        assert found in (Parsed(content=text[:cut]), parsed(OSLO), parsed((OSLO[0], first)))


def test_broken_call_is_content_and_next_call_counts(
    reader: Reader, syntax: CallSyntax, count: int
) -> None:
    broken = syntax.broken(syntax.write(OSLO))
    assert reader.check(broken, count=count) == Parsed(content=broken)
    found = reader.check(f"{broken}\n\n{syntax.write(SEARCH)}", count=count)
    assert found.content in (broken, f"{broken}\n\n{syntax.write(SEARCH)}")
    assert found.calls == parsed(SEARCH).calls[: found.content == broken]


def test_special_tokens_count_only_as_tokens(
    reader: Reader, syntax: CallSyntax, count: int
) -> None:
    text = syntax.write(OSLO, SEARCH)
    markers = frozenset(marker for marker in reader.tools.markers if marker in text)
    by_id = replace(reader, special=markers)
    assert by_id.check(text, count=count) == parsed(OSLO, SEARCH)
    if markers and not syntax.by_line:
        assert by_id.read([(f"I would write {text}", ())]) == Parsed(
            content=f"I would write {text}"
        )


TARGETS = [name for name, form in FORMATS.items() if form.writes is not None]


@pytest.mark.parametrize("name", TARGETS)
def test_forced_call_text_is_parsed_back(name: str, reader: Reader) -> None:
    write = FORMATS[name].writes
    assert write is not None
    calls = [CASES["nested"][0], SEARCH]
    texts = [
        f"{write.before.replace('{name}', name)}{json.dumps(args)}{write.after}"
        for name, args in calls
    ]
    text = f"{write.start}{write.between.join(texts)}{write.end}"
    assert reader.check(text) == parsed(*calls)


def parsed(*calls: Call, content: str = "") -> Parsed:
    return Parsed(
        content=content, calls=tuple((name, dict[str, Any](arguments)) for name, arguments in calls)
    )


WHOLE = {"functiongemma", "gemma4", "lfm2", "llama4_pythonic", "minimax_m3", "olmo3", "pythonic"}
"""Families with values that depend on their end: their calls are not streamed."""


@pytest.mark.parametrize("name", sorted({*SYNTAXES} - WHOLE))
def test_long_argument_is_streamed(name: str) -> None:
    note = "".join(f'line {i} of "it": {{x}} \\ \n' for i in range(40))
    text = SYNTAXES[name].write(("search", {"note": note + "end", "days": 3}), OSLO)
    chunks = [text[at : at + 20] for at in range(0, len(text), 20)]
    parser = OutputParser(replace(REQUEST, stream_calls=True), tools=FORMATS[name])
    found = [*map(parser.feed, chunks), parser.finish()]
    pieces = [piece for delta in found for piece in delta.pieces]
    assert (
        sum(isinstance(piece, ArgumentsPiece) and piece.index == 0 for piece in pieces)
        > len(note) // 40
    )
    calls = [(call.name, json.loads(call.arguments)) for call in ParsedDelta.joined(found).calls]
    assert calls == [("search", {"note": note + "end", "days": 3}), OSLO]
