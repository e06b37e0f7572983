"""Backends in `plugins/` pass the conformance suite if installed; `auto` chooses the exact one."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.grammar_backends.api import Constraint, constraint_of
from core import SamplingParams
from core.api import InvalidRequest
from core.config import EngineConfig
from core.plugin import load_plan, make_plan
from core.testing import conformance
from core.types.structured import StructuredOutputsParams

PLUGINS = Path(__file__).parents[3] / "plugins"
LIBRARIES = {
    "engine_outlines_core": "outlines_core",
    "engine_lm_format_enforcer": "lmformatenforcer",
}
PRESENT = [module for module, library in LIBRARIES.items() if find_spec(library) is not None]
sys.path[:0] = [str(PLUGINS / module.replace("_", "-")) for module in PRESENT]


def cases() -> list[conformance.Case]:
    return [case for module in PRESENT for case in conformance.cases(f"{module}.plugin")]


@pytest.mark.parametrize("case", cases(), ids=str)
def test_distribution_passes_conformance_suite(case: conformance.Case) -> None:
    case()


def admitted(
    schema: dict[str, Any], whitespace_pattern: str | None = None, **settings: object
) -> str:
    """Return the backend that serves a schema. Raises the first rejection if none does."""
    from builtin_plugins.features.structured_outputs.admission import Admission
    from builtin_plugins.features.structured_outputs.grammar_pool import GrammarProcessPool
    from builtin_plugins.features.structured_outputs.grammar_process import GrammarProcess
    from builtin_plugins.features.structured_outputs.grammar_protocol import (
        CompileGrammar,
        ConstraintAccepted,
        ConstraintRejected,
    )
    from builtin_plugins.features.structured_outputs.resources import GrammarResources

    pytest.importorskip("xgrammar")
    registry = load_plan(make_plan(["none", "grammar_xgrammar", "grammar_llguidance"]))
    config = EngineConfig(options={"structured_outputs_config": settings})
    admission = Admission(config, registry, GrammarProcessPool(config, registry))
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(
            json=schema, whitespace_pattern=whitespace_pattern
        )
    )
    found = admission.admit(params, (0,)).structured_outputs
    assert found is not None
    no_masks: Any = None
    reply = next(
        GrammarProcess(GrammarResources(config, registry), no_masks).compile(
            CompileGrammar(constraint_of(found), found.backend.split(","))
        )
    )
    if isinstance(reply, ConstraintRejected):
        raise InvalidRequest(reply.field, reply.message)
    assert isinstance(reply, ConstraintAccepted)
    return reply.backend


def test_auto_chooses_the_exact_backend() -> None:
    assert admitted({"type": "integer"}) == "llguidance"
    assert admitted({"type": "number", "multipleOf": 3}) == "llguidance"


@pytest.mark.parametrize("disable_fallback", [True, False])
def test_rejection_by_the_exact_backend_is_final(disable_fallback: bool) -> None:
    with pytest.raises(InvalidRequest, match="uniqueItems of more than 8 possible values"):
        admitted({"type": "array", "uniqueItems": True}, disable_fallback=disable_fallback)


def test_selected_backend_rejects_what_it_does_not_hold() -> None:
    with pytest.raises(InvalidRequest, match="xgrammar does not support multipleOf"):
        admitted({"type": "number", "multipleOf": 3}, backend="xgrammar")


def test_vllm_backend_names_are_accepted() -> None:
    assert (
        admitted({"type": "integer"}, backend="guidance", disable_any_whitespace=True)
        == "llguidance"
    )


def test_constraint_is_its_own_cache_key() -> None:
    assert (
        len({Constraint("regex", "a"), Constraint("regex", "a"), Constraint("regex", "a", False)})
        == 2
    )


def test_ambiguous_constraints_go_to_a_tolerant_backend() -> None:
    schema: dict[str, object] = {"type": "string", "pattern": "^(a*)*$"}
    assert admitted(schema) == "llguidance"
    with pytest.raises(InvalidRequest, match="contains a nested repetition that may be empty"):
        admitted(schema, backend="xgrammar")
