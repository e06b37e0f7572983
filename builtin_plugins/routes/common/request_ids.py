"""Maps engine request ids to the ids clients see (without the random suffix)."""

from __future__ import annotations

import hashlib
import re
import secrets


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

    The others lack the sequence number, the random suffix and the prompt number.
    """
    whole = re.sub(r"#\d+$", "", engine_id)
    client_id = whole.rpartition("-")[0]
    return frozenset({engine_id, whole, client_id, re.sub(r"-\d+$", "", client_id)} - {""})
