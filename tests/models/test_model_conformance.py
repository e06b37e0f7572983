"""The suites of the kinds that make a model, passed by every builtin."""

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
def test_builtin_keeps_the_contract_of_its_kind(case: Case) -> None:
    case()
