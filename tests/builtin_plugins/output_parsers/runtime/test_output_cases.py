"""Published model outputs of every family, in every chunking, as text and by special tokens."""

from __future__ import annotations

import pytest

from builtin_plugins.output_parsers.testing import NUM_CHUNKINGS, Parsed
from tests.builtin_plugins.output_parsers.runtime.output_cases import (
    FORMATS,
    KINDS,
    Family,
    as_json,
    cases_of,
    distinct_parsers,
    families,
    reader_of,
)

MIN_CASES = {"tool_parsers": 40, "reasoning_parsers": 20}
"""Minimum number of cases per format; half of them are published malformed outputs."""
FEWER = {
    "reasoning_parsers/identity": 0,
    "reasoning_parsers/minimax_m2_append_think": 7,
}
"""Minimum number of malformed cases of formats with fewer published ones."""


@pytest.fixture(params=[3, pytest.param(NUM_CHUNKINGS, marks=pytest.mark.slow)])
def count(request: pytest.FixtureRequest) -> int:
    """Number of random chunkings."""
    return int(request.param)


@pytest.mark.parametrize(("kind", "parser"), list(distinct_parsers()))
def test_family_cases(kind: str, parser: str, count: int) -> None:
    cases = cases_of(kind, parser)
    found = {}
    for case in cases:
        found[case.name] = visible(reader_of(kind, parser, case).check(case.text, count=count))
    assert found == {
        case.name: (case.reasoning, case.content, case.expected_calls) for case in cases
    }


@pytest.mark.parametrize(("kind", "parser"), list(distinct_parsers()))
def test_family_cases_have_their_call_ids(kind: str, parser: str) -> None:
    for case in cases_of(kind, parser):
        ids = {index: call["id"] for index, call in enumerate(case.calls) if "id" in call}
        reader = reader_of(kind, parser, case)
        found = reader.read([reader.piece(case.text)], with_ids=True).ids
        assert {index: found[index] for index in ids} == ids, case.name


@pytest.mark.parametrize(("kind", "parser"), list(distinct_parsers()))
def test_family_cases_have_the_same_calls_by_special_tokens(
    kind: str, parser: str, count: int
) -> None:
    cases = [case for case in cases_of(kind, parser) if case.special is None]
    found = {}
    for case in cases:
        by_id = reader_of(kind, parser, case, by_id=True)
        found[case.name] = visible(by_id.check(case.text, count=count // 4))[2]
    assert found == {case.name: case.expected_calls for case in cases}


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        pytest.param(kind, found, id=f"{kind}/{found.file}")
        for kind in KINDS
        for found in families(kind)
    ],
)
def test_format_has_enough_cases(kind: str, family: Family) -> None:
    assert family.parsers
    assert {*family.parsers} <= {*FORMATS[kind]}
    assert len({case.name for case in family.cases}) == len(family.cases)
    assert len(family.cases) >= MIN_CASES[kind]
    published = [
        case for case in family.cases if case.malformed and case.source.startswith("https://")
    ]
    assert len(published) >= FEWER.get(
        f"{kind}/{family.file.removesuffix('.yaml')}", MIN_CASES[kind] // 2
    )


def visible(found: Parsed) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Return the client's view in the form of a case."""
    return (
        found.reasoning,
        found.content,
        tuple((name, as_json(arguments)) for name, arguments in found.calls),
    )
