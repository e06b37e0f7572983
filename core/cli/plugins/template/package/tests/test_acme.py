"""The plugin loads, is light, and keeps the contract of its kind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from core.testing import conformance
from core.testing.plugins import load_plugins

MODULE = "engine_acme.plugin"


def test_acme_brings_what_it_says() -> None:
    entries = conformance.entries_of_named_plugins(load_plugins(MODULE))
    assert {registered.kind for registered in entries} == {"KIND_NAME"}


@pytest.mark.parametrize("case", conformance.cases(MODULE), ids=str)
def test_acme_keeps_its_contract(case: conformance.Case) -> None:
    case()


def test_finding_acme_imports_no_torch() -> None:
    code = f"import sys, {MODULE}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
