"""The plugin loads, is light, and keeps the contract of its kind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from core.testing import conformance

MODULE = "engine_acme.plugin"
CASES = conformance.cases(MODULE)


def test_acme_brings_what_it_says() -> None:
    assert "KIND_NAME" in {case.subject.kind for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_acme_keeps_its_contract(case: conformance.Case) -> None:
    case()


def test_finding_acme_imports_no_torch() -> None:
    code = f"import sys, {MODULE}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
