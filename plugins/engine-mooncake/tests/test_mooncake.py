"""Engines in two processes exchange blocks: tokens match one engine, even if the producer dies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from core.errors import EngineError
from core.testing import conformance
from core.testing.conformance import Case
from tests.builtin_plugins.kv_connectors.engine_pairs import (
    check_until_the_producer_is_killed,
    open_peer,
)
from tests.builtin_plugins.kv_connectors.small_engines import FAKE

PLUGIN = "engine_mooncake.plugin"
OPTIONS: dict[str, Any] = {
    "connector": "mooncake",
    "plugins": [*FAKE, PLUGIN],
    "extra": {"protocol": "tcp"},
}


@pytest.fixture(scope="module")
def library() -> None:
    pytest.importorskip("mooncake.engine", exc_type=ImportError)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", conformance.cases(PLUGIN), ids=str)
def test_connector_passes_kv_connector_suite(case: Case) -> None:
    case()


@pytest.mark.usefixtures("library")
@pytest.mark.slow
def test_blocks_are_read_from_another_process_until_it_dies() -> None:
    check_until_the_producer_is_killed(**OPTIONS)


def test_missing_library_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mooncake", None)
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    with pytest.raises(EngineError, match=r"needs the package mooncake-transfer-engine"):
        open_peer("kv_consumer", **OPTIONS)
