"""The response that a WebSocket connection holds."""

from __future__ import annotations

import pytest

from builtin_plugins.routes.responses import session as module
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


@pytest.mark.parametrize("name", ["content", "output"])
def test_images_of_a_chain_have_a_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_IMAGE_CHARS", 100)
    parts = [
        {"type": "input_text", "text": "a" * 999},
        {"type": "input_image", "image_url": "b" * 50},
    ]
    item = {"type": "message", name: parts}
    with_image = [StoredResponse({"id": str(i), "output": []}, [item]) for i in range(3)]
    session = Session()
    session.keep(with_image[:2])
    assert session.chain("1") is not None
    session.keep(with_image)
    assert session.chain("2") is None


def test_output_needs_its_call() -> None:
    call = {"type": "function_call", "call_id": "a"}
    output = {"type": "function_call_output", "call_id": "a"}
    check_call_outputs([output], [call])
    check_call_outputs([call, output], [])
    with pytest.raises(InvalidRequest, match=r"input\[0\]\.call_id: 'a' is not a call"):
        check_call_outputs([output], [{"type": "message"}])
