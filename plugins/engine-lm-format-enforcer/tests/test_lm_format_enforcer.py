"""The backend passes the conformance suite of its kind."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from core.testing import conformance

sys.path.insert(0, str(Path(__file__).parents[1]))
HAS_LIBRARY = find_spec("lmformatenforcer") is not None


@pytest.mark.parametrize(
    "case", conformance.cases("engine_lm_format_enforcer.plugin") if HAS_LIBRARY else [], ids=str
)
def test_lm_format_enforcer_passes_conformance_suite(case: conformance.Case) -> None:
    case()
