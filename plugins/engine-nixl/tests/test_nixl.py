"""Engines in two processes read each other's blocks by NIXL: the tokens are one engine's, whoever
is killed.
"""

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
from tests.kv_connectors.pairs import check_until_the_producer_is_killed, open_peer
from tests.kv_connectors.trial import FAKE

PLUGIN = "engine_nixl.plugin"
OPTIONS: dict[str, Any] = {"connector": "nixl", "plugins": [*FAKE, PLUGIN]}


@pytest.mark.parametrize("case", conformance.cases(PLUGIN), ids=str)
def test_it_holds_to_the_contract(case: Case) -> None:
    case()


@pytest.mark.slow
def test_blocks_are_read_from_another_process_until_it_is_killed() -> None:
    check_until_the_producer_is_killed(**OPTIONS)


@pytest.mark.parametrize("backends", [[], ["UCX", "pigeons"]])
def test_backends_that_are_not_there_stop_the_start(backends: list[str]) -> None:
    with pytest.raises(EngineError, match=r"backends .*this NIXL has .*UCX"):
        open_peer("kv_consumer", extra={"backends": backends}, **OPTIONS)
