"""The hook reference lists every hook with its arguments, and every contract method."""

from __future__ import annotations

import inspect

import pytest

from core.plugin import KINDS, hookspecs
from core.testing.conformance import contract_of
from scripts.reference.hooks import hooks_page

HOOKS = [name for name in vars(hookspecs) if name.startswith("engine_")]


@pytest.fixture(scope="module")
def page() -> str:
    return hooks_page()


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_a_heading_with_its_arguments(page: str, hook: str) -> None:
    arguments = ", ".join(inspect.signature(getattr(hookspecs, hook)).parameters)
    headings = [line for line in page.splitlines() if line.startswith(f"### `{hook}(")]
    assert len(headings) == 1
    for argument in filter(None, arguments.split(", ")):
        assert f"{argument}: " in headings[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_of_a_contract_is_described(page: str, kind: str) -> None:
    contract = contract_of(kind)
    for name, method in vars(contract).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            assert f"- `{name}(" in page
