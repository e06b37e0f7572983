"""The backends in `plugins/` keep the contract, where their library is there; `auto` falls back to
them.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from core import SamplingParams
from core.api import Constraint, InvalidRequest
from core.config import EngineConfig
from core.plugin import load_plan, make_plan
from core.testing import conformance
from core.types.structured import StructuredOutputsParams

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


def admitted(
    schema: dict[str, object], whitespace_pattern: str | None = None, **settings: object
) -> str:
    """Return the backend that serves a schema. Raises what they say against it where none does."""
    from builtin_plugins.features.structured_outputs.admission import Admission
    from builtin_plugins.features.structured_outputs.keeper import Keeper
    from builtin_plugins.features.structured_outputs.keepers import Keepers
    from builtin_plugins.features.structured_outputs.messages import Checked, Make, Refused
    from builtin_plugins.features.structured_outputs.tools import Tools

    pytest.importorskip("xgrammar")
    registry = load_plan(make_plan(["none", "grammar_xgrammar", "engine_llguidance.plugin"]))
    config = EngineConfig(options={"structured_outputs_config": settings})
    admission = Admission(config, registry, Keepers(config, registry))
    asked = SamplingParams(
        structured_outputs=StructuredOutputsParams(
            json=schema, whitespace_pattern=whitespace_pattern
        )
    )
    found = admission.admit(asked, (0,)).structured_outputs
    assert found is not None
    no_masks: Any = None
    said = next(
        Keeper(Tools(config, registry), no_masks).make(
            Make(found.constraint(), found.backend.split(","))
        )
    )
    if isinstance(said, Refused):
        raise InvalidRequest(said.field, said.message)
    assert isinstance(said, Checked)
    return said.backend


needs_llguidance = pytest.mark.skipif(
    "engine_llguidance" not in PRESENT, reason="llguidance is not installed"
)


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
    assert (
        admitted({"type": "integer"}, backend="guidance", disable_any_whitespace=True)
        == "llguidance"
    )


def test_a_constraint_is_its_own_cache_key() -> None:
    assert (
        len({Constraint("regex", "a"), Constraint("regex", "a"), Constraint("regex", "a", False)})
        == 2
    )


@needs_llguidance
def test_what_explodes_is_served_by_a_backend_that_follows_all_ways_at_once() -> None:
    schema: dict[str, object] = {"type": "string", "pattern": "^(a*)*$"}
    assert admitted(schema) == "llguidance"
    with pytest.raises(InvalidRequest, match="holds the repetition of what may be empty"):
        admitted(schema, backend="xgrammar")
