"""Silent event streams get comments, before their first event and between two, over a socket."""

from __future__ import annotations

import httpx
import pytest

from tests.builtin_plugins.servers.test_http_limits import Served, until
from tests.timeouts import TIMEOUT_S

INTERVAL_S = 0.02
COMMENT = ": keep-alive"


def lines_of(served: Served, path: str, body: dict[str, object], comments: int) -> list[str]:
    """Return a stream's lines; the engine answers after so many comments."""
    seen = 0
    lines = []
    url = f"{served.server.url}{path}"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=TIMEOUT_S) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            lines.append(line)
            seen += line == COMMENT
            if seen == comments:
                served.engine.gate.set()  # the next comment wakes the loop
    return lines


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_comments_come_before_the_first_event(path: str) -> None:
    body = {"prompt": "hello", "messages": [{"role": "user", "content": "hello"}]}
    fields = {"prompt"} if path == "/v1/completions" else {"messages"}
    with Served(sse_keep_alive_interval=INTERVAL_S) as served:
        served.engine.gate.clear()
        sent = {name: value for name, value in body.items() if name in fields}
        lines = lines_of(served, path, sent, comments=3)
    events = [line for line in lines if line and line != COMMENT]
    assert lines.count(COMMENT) >= 3
    assert lines[0] == COMMENT
    assert lines[1] == ""
    assert events[-1] == "data: [DONE]"
    assert len(events) > 5


def test_error_after_a_comment_is_an_event() -> None:
    with Served(sse_keep_alive_interval=INTERVAL_S) as served:
        served.engine.gate.clear()
        served.engine.fail_at = 0
        lines = lines_of(served, "/v1/completions", {"prompt": "hello"}, comments=1)
    assert any("made to fail" in line or '"error"' in line for line in lines)


def test_without_the_option_there_are_no_comments() -> None:
    with Served() as served:
        answer = served.complete("hello", stream=True)
    assert COMMENT not in answer.text


def test_client_that_leaves_before_the_first_event_aborts_the_request() -> None:
    with Served(sse_keep_alive_interval=INTERVAL_S) as served:
        served.engine.gate.clear()
        url = f"{served.server.url}/v1/completions"
        body = {"prompt": "hello", "stream": True}
        with httpx.stream("POST", url, json=body, timeout=TIMEOUT_S) as answer:
            assert next(answer.iter_lines()) == COMMENT
        until(lambda: served.engine.aborted)
