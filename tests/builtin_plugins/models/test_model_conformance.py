"""The conformance suites of model kinds, for every builtin."""

from __future__ import annotations

import pytest

from core.plugin import load_plan, make_plan
from core.testing.conformance import Case, Subject, checks

KINDS_HERE = ("models", "weight_loaders", "quant_methods", "op_impls", "tokenizers")


def all_cases() -> list[Case]:
    registry = load_plan(make_plan([]))
    return [
        Case(Subject(kind, registered.entry, registry.load(registered), builtin=True), check)
        for kind in KINDS_HERE
        for registered in registry.entries(kind)
        for check in checks(kind)
    ]


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_builtin_passes_its_conformance_suite(case: Case) -> None:
    case()
