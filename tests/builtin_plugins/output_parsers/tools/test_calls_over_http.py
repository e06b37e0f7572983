"""Calls of every family over HTTP, whole and streamed, with tags as special tokens and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from builtin_plugins.output_parsers.testing import Parsed, Reader
from tests.builtin_plugins.output_parsers.tools.call_syntaxes import DESCRIBED, SYNTAXES
from tests.builtin_plugins.output_parsers.tools.test_call_syntax import (
    CASES,
    FORMATS,
    OSLO,
    REQUEST,
)
from tests.over_http import Question, answers, scripted_engine

Key = tuple[str, str]
Answers = dict[Key, tuple[Parsed, Parsed]]
MARKERS = frozenset(marker for form in FORMATS.values() for marker in form.markers)


def texts(name: str) -> dict[str, str]:
    """Return outputs of the family by case."""
    write = SYNTAXES[name].write
    one = write(OSLO)
    return {
        **{case: write(*calls) for case, calls in CASES.items()},
        "none": "Hello, [1, 2] and {3}.",
        "around": f"Let me [look]:\n{one}\nThere, {{you}} see. <end>",
        "cut off": one[: len(one) * 2 // 3],
        "broken": SYNTAXES[name].broken(one),
    }


@pytest.fixture(
    scope="module", params=["text", pytest.param("special tokens", marks=pytest.mark.slow)]
)
def special(request: pytest.FixtureRequest) -> frozenset[str]:
    return MARKERS if request.param == "special tokens" else frozenset()


@pytest.fixture(scope="module")
def served(special: frozenset[str]) -> Iterator[Answers]:
    questions = {
        (name, case): Question(
            text,
            {"enable_auto_tool_choice": True, "tool_call_parser": name},
            {"tools": REQUEST.tools},
        )
        for name in SYNTAXES
        for case, text in texts(name).items()
    }
    with scripted_engine((question.text for question in questions.values()), special) as engine:
        engine.tokenizer.response_template = DESCRIBED
        yield dict(zip(questions, answers(engine, [*questions.values()]), strict=True))


@pytest.mark.parametrize("name", SYNTAXES)
def test_http_answers_equal_parser_output(
    name: str, served: Answers, special: frozenset[str]
) -> None:
    for index, stream_calls in enumerate((False, True)):
        request = replace(REQUEST, stream_calls=stream_calls)
        reader = Reader(tools=FORMATS[name], request=request, special=special)
        expected = {case: reader.read([reader.piece(text)]) for case, text in texts(name).items()}
        assert {case: served[name, case][index] for case in expected} == expected
