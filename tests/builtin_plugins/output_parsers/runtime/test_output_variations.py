"""Fuzz test of model outputs: mutations neither lose nor invent text, in any chunking."""

from __future__ import annotations

import random

import pytest

from tests.builtin_plugins.output_parsers.runtime.output_cases import (
    KINDS,
    OutputCase,
    cases_of,
    families,
    reader_of,
)
from tests.builtin_plugins.output_parsers.runtime.output_variations import (
    PUT_IN,
    invented,
    lost,
    markers_of,
    rests,
    variations,
)

AROUND = """
name arguments parameters parameter invoke function functions string type tool tools index argument
args key number integer object array boolean call calls true false null commentary assistant json
constrain channel message start self user thought think analysis final response tool_call_id
tool_name id CDATA atem item multi
"""
"""Words around values: attributes, JSON keys, types, elements of lists, a header's recipients."""
HEADERS = {
    "inkling",
    "k2_horizon",
    "kimi_k3",
    "minimax_m3",
    "muse",
    "muse_glimmer",
    "musespark1x",
    "openai",
    "openai_gptoss",
}
"""Families with headers, types, elements or an output end, where an inserted word is not visible.
"""
LAYOUT = {"minimax_m3": ["$text"], "openai": ["\n"], "openai_gptoss": ["\n"]}
"""What a family's parser adds: a key for text between elements, a line break between messages."""
TAGGED = {"minimax_m2_append_think"}
"""Families that show a tag of the prompt."""


@pytest.fixture(params=[6, pytest.param(200, marks=pytest.mark.slow)])
def max_variations(request: pytest.FixtureRequest) -> int:
    """Maximum number of variations of a text."""
    return int(request.param)


@pytest.mark.parametrize(
    ("kind", "parser"),
    [(kind, name) for kind in KINDS for found in families(kind) for name in found.parsers],
)
def test_mutations_neither_lose_nor_invent_text(
    kind: str, parser: str, max_variations: int
) -> None:
    rng = random.Random(parser)
    texts = [case for case in cases_of(kind, parser) if is_plain(case)]
    for case in rng.sample(texts, min(len(texts), 2 + max_variations // 20)):
        reader = reader_of(kind, parser, case)
        markers = markers_of(reader.tools, reader.reasoning)
        every = [*variations(case.text, markers)]
        for what, text in rng.sample(every, min(len(every), max_variations)):
            found = reader.check(text, count=2)
            structure = {*AROUND.split(), *rests(markers), *(PUT_IN if parser in HEADERS else ())}
            assert lost(case.text, text, found, markers) <= structure, (
                case.name,
                what,
                text,
                found,
            )
            assert parser in TAGGED or not invented(text, found, LAYOUT.get(parser, ())), (
                case.name,
                what,
                text,
                found,
            )


def is_plain(case: OutputCase) -> bool:
    """Return whether a case is well-formed, short, and needs no JSON escapes."""
    return not case.malformed and len(case.text) < 600 and "\\" not in case.text
