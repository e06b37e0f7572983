"""Calls of every family through the engine and over HTTP, whole and streamed, tags as special
tokens and as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from over_http import Question, answers, scripted_engine
from spellings import DESCRIBED, SPELLINGS
from test_spelled_calls import CASES, FORMATS, OSLO, REQUEST

from core.testing.parsing import Parsed, Reader

Key = tuple[str, str]
Answers = dict[Key, tuple[Parsed, Parsed]]
MARKERS = frozenset(marker for form in FORMATS.values() for marker in form.markers)


def texts(name: str) -> dict[str, str]:
    """What a model of the family may say, by what is particular about it."""
    write = SPELLINGS[name].write
    one = write(OSLO)
    return {
        **{case: write(*calls) for case, calls in CASES.items()},
        "none": "Hello, [1, 2] and {3}.",
        "around": f"Let me [look]:\n{one}\nThere, {{you}} see. <end>",
        "cut off": one[: len(one) * 2 // 3],
        "broken": SPELLINGS[name].broken(one),
    }


@pytest.fixture(scope="module", params=["text", "special tokens"])
def special(request: pytest.FixtureRequest) -> frozenset[str]:
    return MARKERS if request.param == "special tokens" else frozenset()


@pytest.fixture(scope="module")
def said(special: frozenset[str]) -> Iterator[Answers]:
    asked = {
        (name, case): Question(
            text,
            {"enable_auto_tool_choice": True, "tool_call_parser": name},
            {"tools": REQUEST.tools},
        )
        for name in SPELLINGS
        for case, text in texts(name).items()
    }
    with scripted_engine((question.text for question in asked.values()), special) as engine:
        engine.tokenizer.response_template = DESCRIBED
        yield dict(zip(asked, answers(engine, [*asked.values()]), strict=True))


@pytest.mark.parametrize("name", SPELLINGS)
def test_clients_get_what_the_parser_finds(
    name: str, said: Answers, special: frozenset[str]
) -> None:
    for index, in_pieces in enumerate((False, True)):
        request = replace(REQUEST, in_pieces=in_pieces)
        reader = Reader(tools=FORMATS[name], request=request, special=special)
        expected = {case: reader.read([reader.piece(text)]) for case, text in texts(name).items()}
        assert {case: said[name, case][index] for case in expected} == expected
