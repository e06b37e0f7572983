"""The backends in `plugins/` keep the contract, where their library is there; `auto` falls back to them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from core import SamplingParams
from core.api import Constraint, InvalidRequest
from core.config import EngineConfig
from core.plugin import load_plan, make_plan
from core.structured import StructuredOutputsParams
from core.testing import conformance

PLUGINS = Path(__file__).parents[2] / "plugins"
LIBRARIES = {
    "engine_llguidance": "llguidance",
    "engine_outlines_core": "outlines_core",
    "engine_lm_format_enforcer": "lmformatenforcer",
}
PRESENT = [module for module, library in LIBRARIES.items() if find_spec(library) is not None]
sys.path[:0] = [str(PLUGINS / module.replace("_", "-")) for module in PRESENT]


def cases() -> list[conformance.Case]:
    return [case for module in PRESENT for case in conformance.cases(f"{module}.plugin")]


@pytest.mark.parametrize("case", cases(), ids=str)
def test_a_distribution_keeps_its_contract(case: conformance.Case) -> None:
    case()


def admitted(schema: dict[str, object], **settings: object) -> str:
    """Return the backend that admission chooses for a schema."""
    from builtin_plugins.structured_outputs.admission import Admission

    pytest.importorskip("xgrammar")
    registry = load_plan(make_plan(["none", "grammar_xgrammar", "engine_llguidance.plugin"]))
    admission = Admission(EngineConfig(options={"structured_outputs_config": settings}), registry)
    asked = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))
    found = admission.admit(asked, (0,)).structured_outputs
    assert found is not None
    return found.backend


needs_llguidance = pytest.mark.skipif("engine_llguidance" not in PRESENT, reason="llguidance is not installed")


@needs_llguidance
def test_auto_takes_the_first_that_holds_the_schema_exactly() -> None:
    assert admitted({"type": "integer"}) == "xgrammar"
    assert admitted({"type": "number", "multipleOf": 3}) == "llguidance"


@needs_llguidance
def test_without_fallback_the_first_ones_refusal_stands() -> None:
    with pytest.raises(InvalidRequest, match="xgrammar cannot hold outputs to multipleOf"):
        admitted({"type": "number", "multipleOf": 3}, disable_fallback=True)


@needs_llguidance
def test_vllms_names_of_backends_are_understood() -> None:
    assert admitted({"type": "integer"}, backend="guidance", disable_any_whitespace=True) == "llguidance"


def test_a_constraint_is_its_own_cache_key() -> None:
    assert len({Constraint("regex", "a"), Constraint("regex", "a"), Constraint("regex", "a", False)}) == 2
