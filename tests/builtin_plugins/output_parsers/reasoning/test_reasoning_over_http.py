"""Reasoning of every family over HTTP, whole and streamed, with tags as tokens and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from builtin_plugins.output_parsers.testing import Parsed
from tests.builtin_plugins.output_parsers.reasoning.test_reasoning_families import (
    DESCRIBED,
    ON,
    REASONING,
    reader,
    tags,
)
from tests.over_http import Question, answers, scripted_engine

Answers = dict[tuple[str, str], tuple[Parsed, Parsed]]
MARKERS = frozenset(marker for form in REASONING.values() for marker in form.markers)


def texts(name: str) -> dict[str, str]:
    """Return outputs of the family by case."""
    start, end = tags(name)
    return {
        "thoughts": f"{start}\ngr\u00f6\u00dfer \u6f22\u5b57 <b>1 < 2\n\nhm\n{end}\n\nYes, [a] "
        f"{{b}}.\n c",
        "no start": f"hm{end}Yes.",
        "no end": f"{start}hm, and",
        "neither": "Yes, it is.",
    }


@pytest.fixture(scope="module", params=["text", "special tokens"])
def special(request: pytest.FixtureRequest) -> frozenset[str]:
    return MARKERS if request.param == "special tokens" else frozenset()


@pytest.fixture(scope="module")
def served(special: frozenset[str]) -> Iterator[Answers]:
    questions = {
        (name, case): Question(
            text, {"reasoning_parser": name}, {"chat_template_kwargs": ON.get(name, {})}
        )
        for name in REASONING
        for case, text in texts(name).items()
    }
    with scripted_engine((question.text for question in questions.values()), special) as engine:
        engine.tokenizer.response_template = DESCRIBED
        yield dict(zip(questions, answers(engine, [*questions.values()]), strict=True))


@pytest.mark.parametrize("name", REASONING)
def test_http_answers_equal_parser_output(
    name: str, served: Answers, special: frozenset[str]
) -> None:
    by_id = replace(reader(name), special=special)
    for index, whole in enumerate((True, False)):
        one = replace(by_id, request=replace(by_id.request, whole=whole))
        expected = {case: one.read([one.piece(text)]) for case, text in texts(name).items()}
        assert {case: served[name, case][index] for case in expected} == expected
