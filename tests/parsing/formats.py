"""Every parser there is, and how a case is read."""

from __future__ import annotations

from written import KINDS, Written

from core.plugin import load_plan, make_plan
from core.testing.parsing import Reader

REGISTRY = load_plan(make_plan(["none", *KINDS]))
FORMATS = {
    kind: {found.entry.name: REGISTRY.load(found) for found in REGISTRY.entries(kind)}
    for kind in KINDS
}


def reader_of(kind: str, parser: str, case: Written, *, by_id: bool = False) -> Reader:
    """Return the parser a case is for, with the other kind's where it needs one; `by_id` has all
    markers as tokens.
    """
    tools = parser if kind == "tool_parsers" else case.tool_parser
    reasoning = parser if kind == "reasoning_parsers" else case.reasoning_parser
    formats = [FORMATS[KINDS[0]].get(tools or ""), FORMATS[KINDS[1]].get(reasoning or "")]
    special = frozenset(case.special or ())
    if by_id:
        special = frozenset(
            mark for form in formats if form for mark in form.markers if mark in case.text
        )
    return Reader(tools=formats[0], reasoning=formats[1], request=case.request, special=special)
