"""A client's request: what it says, and whether another engine may compute its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from builtin_plugins.commands.route.upstream import OWN_HEADERS, Headers

FIELD: Final = "kv_transfer_params"
SPLIT: Final = frozenset({"/v1/completions", "/v1/chat/completions"})
"""Endpoints whose answers say how another engine goes on."""
WANTED: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(slots=True)
class Call:
    """A client's request."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    keys: Sequence[bytes] = ()
    """Of its prompt's beginning."""
    streams: bool = False

    @classmethod
    def of(cls, scope: Any, body: bytes) -> Call:
        """Return the call of an ASGI scope."""
        target = scope["raw_path"] + (
            b"?" + scope["query_string"] if scope["query_string"] else b""
        )
        headers = [(name, value) for name, value in scope["headers"] if name not in OWN_HEADERS]
        return cls(scope["method"].encode(), target, headers, body)

    def fields(self) -> dict[str, Any] | None:
        """Return what it says; None: an engine is to say what is wrong with it."""
        if self.method != b"POST":
            return None
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


def splits(path: str, fields: Mapping[str, Any]) -> bool:
    """Say whether a request is one whose prompt another engine may compute: one prompt, nothing of
    which is to be shown.
    """
    if (
        path not in SPLIT
        or fields.get(FIELD)
        or fields.get("echo")
        or fields.get("prompt_logprobs") is not None
    ):
        return False
    prompt = fields.get("prompt", "")
    return isinstance(prompt, str) or (
        isinstance(prompt, list) and all(isinstance(each, int) for each in prompt)
    )


def of_prompt(fields: Mapping[str, Any]) -> bytes:
    """Return the body by which an engine computes the prompt, and says how another goes on."""
    asked = {
        name: value
        for name, value in fields.items()
        if name not in ("stream_options", "min_tokens", "best_of")
    }
    asked |= {"max_tokens": 1, "stream": False, "n": 1, FIELD: WANTED}
    if "max_completion_tokens" in fields:
        asked["max_completion_tokens"] = 1
    return msgspec.json.encode(asked)


def offered(said: bytes) -> Mapping[str, Any] | None:
    """Return what an answer says of how another engine goes on."""
    try:
        offer = msgspec.json.decode(said).get(FIELD)
    except (msgspec.DecodeError, AttributeError):
        return None
    return offer if isinstance(offer, dict) else None


def going_on(fields: Mapping[str, Any], offer: Mapping[str, Any]) -> bytes:
    """Return the body by which an engine goes on with what another has offered."""
    return msgspec.json.encode({**fields, FIELD: offer})
