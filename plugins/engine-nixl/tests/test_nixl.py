"""Engines in two processes exchange blocks: tokens match one engine, even if the producer dies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nixl._api", exc_type=ImportError)
sys.path.insert(0, str(Path(__file__).parents[1]))

from core.errors import EngineError
from core.testing import conformance
from core.testing.conformance import Case
from tests.builtin_plugins.kv_connectors.engine_pairs import (
    check_until_the_producer_is_killed,
    open_peer,
)
from tests.builtin_plugins.kv_connectors.small_engines import FAKE

PLUGIN = "engine_nixl.plugin"
OPTIONS: dict[str, Any] = {"connector": "nixl", "plugins": [*FAKE, PLUGIN]}


@pytest.mark.parametrize("case", conformance.cases(PLUGIN), ids=str)
def test_connector_passes_kv_connector_suite(case: Case) -> None:
    case()


@pytest.mark.slow
def test_blocks_are_read_from_another_process_until_it_dies() -> None:
    check_until_the_producer_is_killed(**OPTIONS)


@pytest.mark.parametrize("backends", [[], ["UCX", "pigeons"]])
def test_unknown_backends_are_rejected(backends: list[str]) -> None:
    with pytest.raises(EngineError, match=r"backends: .*this NIXL's .*UCX"):
        open_peer("kv_consumer", extra={"backends": backends}, **OPTIONS)
