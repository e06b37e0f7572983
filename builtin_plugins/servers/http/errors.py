"""Converts exceptions to HTTP answers, in OpenAI's error format or a route group's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from core.api import (
    EngineDead,
    EngineError,
    InvalidRequest,
    PluginError,
    RequestFailed,
    RequestTimeout,
)

log = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
}

MAX_MESSAGE_CHARS: Final = 1400
"""Longest error message."""
MAX_PARAM_CHARS: Final = 200
"""Longest name of a field in an error."""
Form = Callable[[int, Mapping[str, Any]], Mapping[str, Any]]
"""Returns an error body for a status and OpenAI's error object."""


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """HTTP answer to a failed request."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Return OpenAI's error object."""
        return {
            "message": _encodable(self.message, MAX_MESSAGE_CHARS),
            "type": self.type,
            "param": None if self.param is None else _encodable(self.param, MAX_PARAM_CHARS),
            "code": self.code,
        }

    def body(self, form: Form | None = None) -> bytes:
        """Return the JSON body, in OpenAI's form or `form`."""
        error = self.fields()
        return msgspec.json.encode({"error": error} if form is None else form(self.status, error))


def _encodable(text: str, max_chars: int) -> str:
    """Return the beginning of a text that may repeat a client's, without lone surrogates."""
    short = text if len(text) <= max_chars else f"{text[:max_chars]}..."
    return short.encode(errors="replace").decode()


class Refused(Exception):
    """A request refused by a limit of the server."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.message)
        self.answer = answer


def describe(error: BaseException, request_id: str | None = None) -> ErrorAnswer:
    """Return the answer to an exception; an unhandled one is logged and not exposed.

    The answer to a plugin's exception contains the request id, under which the caller logs it.
    """
    if isinstance(error, InvalidRequest):
        return ErrorAnswer(400, str(error), "invalid_request_error", error.field, error.code)
    if isinstance(error, HTTPException):
        return _from_http(error.status_code, error.detail, error.headers or {})
    if isinstance(error, RequestValidationError):
        return _from_validation(error)
    if isinstance(error, RequestFailed) and error.is_own_fault:
        return ErrorAnswer(400, str(error), "invalid_request_error", code="nothing_left")
    if isinstance(error, RequestFailed):
        return ErrorAnswer(500, str(error), "server_error", code="request_failed")
    if isinstance(error, RequestTimeout):
        return ErrorAnswer(504, str(error), "server_error", code="timeout")
    if isinstance(error, EngineDead):
        return ErrorAnswer(
            503, str(error), "server_error", code="engine_dead", headers={"Retry-After": "1"}
        )
    if isinstance(error, PluginError):
        return ErrorAnswer(
            500, error.client_message(request_id), "server_error", code="plugin_failed"
        )
    if isinstance(error, EngineError):
        return _from_engine(error)
    if isinstance(error, ClientDisconnect):
        return ErrorAnswer(
            499, "the client left before its request was whole.", "invalid_request_error"
        )
    if isinstance(error, TimeoutError):
        return ErrorAnswer(
            504, "the request took too long inside the server.", "server_error", code="timeout"
        )
    log.error("unhandled exception in a request", exc_info=error)
    return ErrorAnswer(
        500, "internal error; see the server log.", "server_error", code="internal_error"
    )


def _from_engine(error: EngineError) -> ErrorAnswer:
    """Return a 503 for an error with `retry_after_s` (a full queue), otherwise a 500.

    It is not a 429: the client is not at fault, and proxies retry a 503 on another server.
    """
    wait_s = getattr(error, "retry_after_s", None)
    if wait_s is None:
        return ErrorAnswer(500, str(error), "server_error", code="engine_error")
    return ErrorAnswer(
        503, str(error), "server_error", None, "overloaded", {"Retry-After": str(wait_s)}
    )


def _from_http(status: int, detail: Any, headers: Mapping[str, str]) -> ErrorAnswer:
    """Return the answer for a detail: a text, or a dict with message, type, param and code."""
    fields = detail if isinstance(detail, Mapping) else {"message": str(detail)}
    default_type = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return ErrorAnswer(
        status,
        str(fields.get("message", "")),
        str(fields.get("type", default_type)),
        fields.get("param"),
        fields.get("code", _CODES.get(status)),
        headers,
    )


def _from_validation(error: RequestValidationError) -> ErrorAnswer:
    first: Mapping[str, Any] = next(iter(error.errors()), {})
    path = (str(part) for part in first.get("loc", ()) if part not in ("body", "query", "path"))
    param = ".".join(path)
    message = f"{param}: {first.get('msg', 'invalid')}"
    return ErrorAnswer(400, message, "invalid_request_error", param or None, "invalid_value")
