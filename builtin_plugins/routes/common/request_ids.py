"""Maps engine request ids to the ids clients see (without the random suffix)."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Final

MAX_CLIENT_ID: Final = 200
"""Length limit of a client's `X-Request-Id`, in characters."""
_SEPARATOR: Final = "~"
_PREFIX: Final = re.compile(r"^(?:cmpl|chatcmpl|generate-tokens|embd|pool|classify|score|rerank)-")
"""Beginnings of answer ids before the id that a client gave."""


def client_id_of(headers: Mapping[str, str]) -> str:
    """Return the `X-Request-Id` of a request; empty without a usable one."""
    given = headers.get("x-request-id", "")
    return given if len(given) <= MAX_CLIENT_ID and given.isprintable() else ""


def with_client_id(answer_id: str, headers: Mapping[str, str]) -> str:
    """Return the id of an answer with the client's `X-Request-Id`, for `engine_id`."""
    given = client_id_of(headers)
    return f"{answer_id}{_SEPARATOR}{given}" if given else answer_id


def engine_id(client_id: str, owner: str = "") -> str:
    """Return a unique engine request id: two requests of a client may have the same id.

    The suffix of a request with an `owner` starts with the owner's digest.
    """
    return f"{client_id}-{_digest(owner) if owner else ''}{secrets.token_hex(4)}"


def is_owned(engine_id: str, owner: str) -> bool:
    """Return whether an engine request id was made for an owner."""
    suffix = re.sub(r"#\d+$", "", engine_id).rpartition("-")[2]
    return bool(owner) and len(suffix) == 24 and suffix.startswith(_digest(owner))


def _digest(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()[:16]


def id_aliases(engine_id: str) -> frozenset[str]:
    """Return every id under which a client may know an engine request, including the engine's own.

    The others lack the sequence number, the random suffix, the prompt number and the prefix of
    the protocol, or are the client's `X-Request-Id`.
    """
    whole = re.sub(r"#\d+$", "", engine_id)
    client_id = whole.rpartition("-")[0]
    ids = {client_id, re.sub(r"-\d+$", "", client_id)}
    ids |= {each for found in ids for each in found.split(_SEPARATOR, 1)}
    ids |= {_PREFIX.sub("", each) for each in ids}
    return frozenset({engine_id, whole, *ids} - {""})
