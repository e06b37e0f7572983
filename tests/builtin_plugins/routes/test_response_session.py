"""The response that a WebSocket connection holds."""

from __future__ import annotations

import pytest

from builtin_plugins.routes.responses.session import Session, check_call_outputs
from builtin_plugins.routes.responses.table_reader import MAX_CHAIN, StoredResponse
from core.errors import InvalidRequest


def stored(response_id: str) -> StoredResponse:
    return StoredResponse({"id": response_id, "output": []}, [])


def test_only_the_newest_response_is_held() -> None:
    session = Session()
    first = stored("a")
    second = stored("b")
    session.keep([first])
    assert session.chain("a") == [first]
    session.keep([first, second])
    assert session.chain("b") == [first, second]
    assert session.chain("a") is None


def test_eviction_of_another_response_changes_nothing() -> None:
    session = Session()
    session.keep([stored("a")])
    session.evict("b")
    assert session.chain("a") is not None
    session.evict("a")
    assert session.chain("a") is None


def test_a_chain_has_a_limit() -> None:
    session = Session()
    session.keep([stored(str(i)) for i in range(MAX_CHAIN + 1)])
    assert session.chain(str(MAX_CHAIN)) is None


def test_output_needs_its_call() -> None:
    call = {"type": "function_call", "call_id": "a"}
    output = {"type": "function_call_output", "call_id": "a"}
    check_call_outputs([output], [call])
    check_call_outputs([call, output], [])
    with pytest.raises(InvalidRequest, match=r"input\[0\]\.call_id: 'a' is not a call"):
        check_call_outputs([output], [{"type": "message"}])
