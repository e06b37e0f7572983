"""Error bodies of APIs other than OpenAI's, for their routes and for servers in front of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from core.api import TOO_LONG

ErrorForm = Callable[[int, Mapping[str, Any]], Mapping[str, Any]]
"""Returns an error body for a status and OpenAI's error object."""

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_NUMBERS: Final = re.compile(r"(\d+) tokens\b.* the context holds (\d+)")


def anthropic_error(status: int, error: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error in Anthropic's form, with the additional fields `param` and `code`."""
    if error["code"] == TOO_LONG:  # agents react to these words by shortening the conversation
        numbers = _NUMBERS.search(error["message"])
        counts = f": {numbers[1]} tokens > {numbers[2]} maximum" if numbers else ""
        error = {**error, "message": f"prompt is too long{counts}"}
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {**error, "type": kind}, "request_id": None}


def cohere_error(status: int, error: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error in Cohere's form, with the additional fields `param` and `code`."""
    return dict(error)


ERROR_FORMS: Final[Mapping[str, ErrorForm]] = {
    "/v1/messages": anthropic_error,
    "/v1/messages/count_tokens": anthropic_error,
    "/v2/chat": cohere_error,
}
"""The form of each path that has one of its own."""
