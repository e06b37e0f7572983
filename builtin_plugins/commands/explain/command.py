"""`engine explain REQUEST_ID`: prints why a request of a running server waits or ended."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from core.api import ConfigError, EngineError
from core.api.config import read_environment

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

URL: Final = "http://localhost:8000"
TIMEOUT_S: Final = 30.0


class Explain:
    """Why a request waits, was preempted or rejected, and its time in each state."""

    help = "Explain why a request waits, was preempted or rejected, and where its time went."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the request id and the server address."""
        parser.add_argument(
            "request_id", help="id of the answer, or the X-Request-Id that the request came with"
        )
        parser.add_argument("--url", default=URL, help=f"address of the server (default: {URL})")
        parser.add_argument("--api-key", metavar="KEY", help="default: ENGINE_API_KEY")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, context: CommandContext) -> int:
        """Print the explanation.

        Raises `EngineError` with the server's message if it knows nothing.
        """
        args = context.args
        answer = _fetch(
            args.url, args.request_id, args.api_key or read_environment().get("ENGINE_API_KEY")
        )
        print(json.dumps(answer, indent=2) if args.json else "\n".join(answer["lines"]))
        return 0


def _fetch(url: str, request_id: str, key: str | None) -> dict[str, Any]:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"--url: got {url!r}; expected an http(s) address such as {URL}.")
    base = url.rstrip("/").removesuffix("/v1")
    request = urllib.request.Request(f"{base}/explain?{urlencode({'request_id': request_id})}")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        raise EngineError(_refusal(error)) from error
    except (OSError, ValueError) as error:
        raise EngineError(f"no server answers at {base}: {error}. Set --url.") from error
    return answer


def _refusal(error: urllib.error.HTTPError) -> str:
    try:
        error_fields = json.load(error)["error"]
    except (ValueError, KeyError, TypeError):
        return f"the server rejects the request ({error.code})."
    if error_fields.get("code") == "not_found" and not error_fields["message"].startswith(
        "nothing is known"
    ):
        return "the server has no such route; start it with --enable-operator-routes."
    return f"the server rejects the request ({error.code}): {error_fields['message']}"
