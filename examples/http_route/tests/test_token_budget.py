"""The plugin loads, imports little, and passes the conformance suite of its kind."""

from __future__ import annotations

import subprocess
import sys

import pytest
from engine_token_budget.routes import TokenBudget
from starlette.testclient import TestClient

from core.api import EngineConfig
from core.testing import conformance
from core.testing.echo_engine import EchoEngine
from core.testing.plugins import load_plugins

MODULE = "engine_token_budget.plugin"


def test_token_budget_adds_a_route_group() -> None:
    entries = conformance.entries_of_named_plugins(load_plugins(MODULE))
    assert {registered.kind for registered in entries} == {"routes"}


@pytest.mark.parametrize("case", conformance.cases(MODULE), ids=str)
def test_token_budget_passes_conformance_suite(case: conformance.Case) -> None:
    case()


def test_discovery_imports_no_torch() -> None:
    code = f"import sys, {MODULE}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def client() -> TestClient:
    """Return a client of the builtin server with this route group and a byte tokenizer."""
    engine = EchoEngine(max_model_len=64)
    config = EngineConfig()
    registry = load_plugins(MODULE, "server_http")
    server = registry.load(registry.choose("servers"))(
        engine, config, {"token_budget": TokenBudget(engine, config)}
    )
    return TestClient(server.app)


def test_text_tokens_are_counted() -> None:
    answer = client().post("/v1/token_budget", json={"text": "twelve bytes"})
    assert answer.json() == {"tokens": 12, "max_model_len": 64, "room": 52}


def test_conversation_tokens_are_counted_after_the_template() -> None:
    answer = client().post(
        "/v1/token_budget", json={"messages": [{"role": "user", "content": "hello"}]}
    )
    assert answer.json()["tokens"] == 5


def test_overlong_text_leaves_no_room() -> None:
    assert client().post("/v1/token_budget", json={"text": "x" * 100}).json()["room"] == 0


@pytest.mark.parametrize("body", ["{", "[]", "{}", '{"text": 7}', '{"text": "a", "messages": []}'])
def test_invalid_request_gets_an_api_error(body: str) -> None:
    answer = client().post("/v1/token_budget", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
