"""`engine explain REQUEST_ID`: asks a running server and prints its sentences."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from core.api import ConfigError, EngineError, Entry, hookimpl
from core.config.env import read_environment

if TYPE_CHECKING:
    import argparse

URL: Final = "http://localhost:8000"
TIMEOUT_S: Final = 30.0


@hookimpl
def engine_commands() -> list[Entry]:
    """Give the command."""
    return [Entry("explain", Explain, "say why a request waits, and where its time went")]


class Explain:
    """Why a request waits, was preempted or refused, and how long it was in each state."""

    help = "Say why a request of a running server waits, was preempted or refused, and where its time went."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add whose story is wanted, and where the server is."""
        parser.add_argument(
            "request_id", help="id of the answer, or the X-Request-Id that the request came with"
        )
        parser.add_argument("--url", default=URL, help=f"address of the server (default: {URL})")
        parser.add_argument("--api-key", metavar="KEY", help="default: ENGINE_API_KEY")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, context: Any) -> int:
        """Print what the server knows.

        Raises `EngineError` with what it says where it knows nothing.
        """
        args = context.args
        answer = _ask(
            args.url, args.request_id, args.api_key or read_environment().get("ENGINE_API_KEY")
        )
        print(json.dumps(answer, indent=2) if args.json else "\n".join(answer["told"]))
        return 0


def _ask(url: str, request_id: str, key: str | None) -> dict[str, Any]:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"--url {url!r} is no address of a server; give one like {URL}.")
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
        raise EngineError(
            f"no server answers at {base}: {error}. Say where it is with --url."
        ) from error
    return answer


def _refusal(error: urllib.error.HTTPError) -> str:
    try:
        said = json.load(error)["error"]
    except (ValueError, KeyError, TypeError):
        return f"the server refuses ({error.code})."
    if said.get("code") == "not_found" and not said["message"].startswith("nothing is known"):
        return "the server does not tell: start it with --enable-operator-routes."
    return f"the server refuses ({error.code}): {said['message']}"
