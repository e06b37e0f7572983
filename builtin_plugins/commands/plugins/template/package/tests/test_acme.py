"""The plugin loads fast and fulfils the contract of its kind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from core.testing import conformance

MODULE = "engine_acme.plugin"
CASES = conformance.cases(MODULE)


def test_acme_registers_its_kind() -> None:
    assert "KIND_NAME" in {case.subject.kind for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_acme_fulfils_its_contract(case: conformance.Case) -> None:
    case()


def test_importing_acme_imports_no_torch() -> None:
    code = f"import sys, {MODULE}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
