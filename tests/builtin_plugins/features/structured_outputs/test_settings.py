"""Keys of `--structured-outputs-config` that bound processes or choose what is constrained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.features.structured_outputs.grammar_handle import ProcessState
from builtin_plugins.features.structured_outputs.grammar_pool import GrammarProcessPool
from builtin_plugins.features.structured_outputs.settings import StructuredOutputsConfig
from builtin_plugins.grammar_backends.api import constraint_of
from core.config import EngineConfig
from core.plugin import load_plan, make_plan
from core.types.structured import StructuredOutputsParams


@pytest.mark.parametrize(
    ("settings", "num_left"),
    [({}, 5), ({"max_constraints": 3}, 3), ({"cache_bytes": 200}, 2), ({"cache_bytes": 0}, 0)],
)
def test_idle_processes_are_bounded_by_number_and_size(
    settings: dict[str, Any], num_left: int
) -> None:
    config = EngineConfig(options={"structured_outputs_config": settings})
    pool: Any = GrammarProcessPool(config, load_plan(make_plan(["none"])))
    for number in range(5):
        handle = SimpleNamespace(
            state=ProcessState.READY,
            outputs=(),
            memory_bytes=100,
            key=number,
            end=lambda error: None,
        )
        pool._handles[number] = handle
    pool._evict()
    assert len(pool._handles) == num_left


@pytest.mark.parametrize("enable_in_reasoning", [False, True])
def test_enable_in_reasoning_constrains_the_whole_output(enable_in_reasoning: bool) -> None:
    given = {"enable_in_reasoning": enable_in_reasoning}
    options = {"reasoning_parser": "think", "structured_outputs_config": given}
    config = EngineConfig(options=options)
    registry = load_plan(make_plan(["none", "reasoning_parsers"]))
    found = StructuredOutputsConfig.of(config).reasoning_parser_of(config, registry)
    assert (found is None) == enable_in_reasoning


@pytest.mark.parametrize("value", [False, True])
def test_disable_additional_properties_reaches_the_backend(value: bool) -> None:
    """Backends close objects either way, which test_constrained_outputs.py shows."""
    params = StructuredOutputsParams(json={"type": "object"}, disable_additional_properties=value)
    assert constraint_of(params).additional_properties is not value
