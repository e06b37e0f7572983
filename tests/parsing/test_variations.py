"""A fuzzer of what models write: whatever becomes of a text, nothing of it is lost or invented,
however it comes.
"""

from __future__ import annotations

import random

import pytest
from formats import reader_of
from variations import PUT_IN, invented, lost, markers_of, rests, variations
from written import KINDS, Written, families

AROUND = """
name arguments parameters parameter invoke function functions string type tool tools index argument args key number
integer object array boolean call calls true false null commentary assistant json constrain channel message start self
user thought think analysis final response tool_call_id tool_name id CDATA atem
"""
"""What stands around values: attributes, keys of JSON, types."""
HEADERS = {"inkling", "k2_horizon", "muse", "muse_glimmer", "musespark1x", "openai"}
"""Families with headers, types, or an end of everything: of a word put in there no client sees
anything.
"""
TAGGED = {"minimax_m2_append_think"}
"""Shows a tag that the prompt has."""


@pytest.fixture(params=[6, pytest.param(200, marks=pytest.mark.slow)])
def most(request: pytest.FixtureRequest) -> int:
    """How many variations of a text."""
    return int(request.param)


@pytest.mark.parametrize(
    ("kind", "parser"),
    [(kind, name) for kind in KINDS for found in families(kind) for name in found.parsers],
)
def test_whatever_becomes_of_a_text_nothing_is_lost_or_invented(
    kind: str, parser: str, most: int
) -> None:
    rng = random.Random(parser)
    texts = [case for case in cases_of(kind, parser) if is_plain(case)]
    for case in rng.sample(texts, min(len(texts), 2 + most // 20)):
        reader = reader_of(kind, parser, case)
        markers = markers_of(reader.tools, reader.reasoning)
        every = [*variations(case.text, markers)]
        for what, text in rng.sample(every, min(len(every), most)):
            found = reader.check(text, count=2)
            structure = {*AROUND.split(), *rests(markers), *(PUT_IN if parser in HEADERS else ())}
            assert lost(case.text, text, found, markers) <= structure, (
                case.name,
                what,
                text,
                found,
            )
            assert parser in TAGGED or not invented(text, found), (case.name, what, text, found)


def cases_of(kind: str, parser: str) -> tuple[Written, ...]:
    """Return the cases of a parser."""
    return next(found.cases for found in families(kind) if parser in found.parsers)


def is_plain(case: Written) -> bool:
    """Say whether a case is as its family writes it, short, and its words are the same in JSON."""
    return not case.malformed and len(case.text) < 600 and "\\" not in case.text
