"""`--middleware` and `--log-error-stack`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from builtin_plugins.servers.http.middleware import load_middleware
from builtin_plugins.servers.http.server import HttpServer
from core.api import ConfigError
from core.config import EngineConfig

HERE = __name__


class Marking:
    """Adds a header to answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-marked", b"class")]}
            await send(message)

        await self._app(scope, receive, marked)


async def refuse_completions(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Answer completions itself, and pass all else on."""
    if request.url.path == "/v1/completions":
        return Response("not today", 418)
    return await call_next(request)


def plain_function() -> None:
    """No middleware."""


def test_classes_and_functions_wrap_every_route(make_api: Any) -> None:
    api = make_api(middleware=[f"{HERE}.Marking", f"{HERE}:refuse_completions"])
    assert api.get("/v1/models").headers["x-marked"] == "class"
    assert api.complete().status_code == 418
    assert "x-marked" not in api.complete().headers, "the last one is outermost"
    assert api.chat().json()["choices"][0]["message"]["content"]
    assert "x-marked" in make_api(middleware=[f"{HERE}.Marking"], api_key=["a"]).chat().headers


def test_streams_pass_through_middleware(make_api: Any, read_events: Any) -> None:
    plain = read_events(make_api().complete(stream=True, max_tokens=8))
    api = make_api(middleware=[f"{HERE}.Marking", f"{HERE}.refuse_completions"])
    chat = read_events(api.chat(stream=True, max_tokens=8))
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in chat)
    assert text
    assert len(chat) >= len(plain)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nowhere.Module", "No module named 'nowhere'"),
        (f"{HERE}.Missing", "has no attribute 'Missing'"),
        (f"{HERE}.HERE", "a str; expected an ASGI middleware class"),
        (f"{HERE}.plain_function", "a function; expected an ASGI middleware class"),
        ("json", "expected the import path"),
    ],
)
def test_wrong_middleware_stops_the_start_before_a_model_loads(path: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=r"^--middleware: got") as caught:
        HttpServer.check(EngineConfig(options={"port": 0, "middleware": [path]}))
    assert reason in str(caught.value)
    with pytest.raises(ConfigError):
        load_middleware(path)


@pytest.mark.parametrize("logs", [False, True])
def test_stack_of_an_error_answer_is_logged_with_the_switch_only(
    make_api: Any, caplog: pytest.LogCaptureFixture, logs: bool
) -> None:
    with caplog.at_level(logging.ERROR):
        assert make_api(log_error_stack=logs).complete(max_tokens=-1).status_code == 400
    assert ("POST /v1/completions failed" in caplog.text) == logs
    assert ("Traceback" in caplog.text) == logs
