"""Malformed calls, in every chunking, as text and by special tokens."""

from __future__ import annotations

import time

import pytest

from builtin_plugins.output_parsers.api import ParseRequest
from builtin_plugins.output_parsers.testing import NUM_CHUNKINGS, Parsed, Reader
from tests.builtin_plugins.output_parsers.tools.call_syntaxes import SYNTAXES
from tests.builtin_plugins.output_parsers.tools.malformed_calls import CASES, TOOLS, Case
from tests.builtin_plugins.output_parsers.tools.test_call_syntax import (
    FORMATS,
    OSLO,
    REQUEST,
    SEARCH,
)
from tests.builtin_plugins.output_parsers.tools.test_call_syntax import parsed as calls_of

DOUBLED_FENCES = {"deepseek_v3"}
"""Families with a call end that also starts another marker: removing it removes both."""
BEGINS = {"mistral"}
"""Families without a call end: the next start ends a call and is required."""


@pytest.fixture(params=[20, pytest.param(NUM_CHUNKINGS, marks=pytest.mark.slow)])
def count(request: pytest.FixtureRequest) -> int:
    """Number of random chunkings."""
    return int(request.param)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parser}: {case.why}")
def test_complete_calls_are_read_and_the_rest_is_content(case: Case, count: int) -> None:
    tools = FORMATS[case.parser]
    expected = Parsed(case.content, tuple(case.calls))
    reader = Reader(tools=tools, request=ParseRequest(TOOLS))
    assert reader.check(case.text, count=count) == expected
    by_id = Reader(
        tools=tools,
        request=ParseRequest(TOOLS),
        special=frozenset(m for m in tools.markers if m in case.text),
    )
    assert by_id.check(case.text, count=count).calls == expected.calls


@pytest.mark.parametrize("name", sorted(set(SYNTAXES) - DOUBLED_FENCES - BEGINS))
def test_any_call_end_may_be_missing(name: str, count: int) -> None:
    reader = Reader(tools=FORMATS[name], request=REQUEST)
    text = SYNTAXES[name].write(OSLO, SEARCH)
    ends = FORMATS[name].call_ends
    without = text
    for end in ends:
        before, _, after = text.rpartition(end)
        for loose in (text.replace(end, "", 1), before + after, text.replace(end, "")):
            assert reader.check(loose, count=count // 10) == calls_of(OSLO, SEARCH)
        without = without.replace(end, "")
    assert reader.check(without, count=count) == calls_of(OSLO, SEARCH)


@pytest.mark.parametrize("name", FORMATS)
def test_broken_calls_are_reread_in_linear_time(name: str) -> None:
    form = FORMATS[name]
    reader = Reader(tools=form)
    for begin in form.markers[:2]:
        for unit in (f'{begin}{{"a": "', f"{begin}f(a='", f'{begin}<function=f><parameter=a>"'):
            assert any(
                took(reader, unit, 32_000) / took(reader, unit, 4_000) < 24 for _ in range(3)
            ), unit


def took(reader: Reader, unit: str, num_chars: int) -> float:
    """Return the CPU time of parsing a text in small chunks."""
    text = unit * (num_chars // len(unit))
    started = time.thread_time()
    reader.read((text[at : at + 100], ()) for at in range(0, len(text), 100))
    return time.thread_time() - started
