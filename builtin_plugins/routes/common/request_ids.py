"""Maps engine request ids to the ids clients see (without the random suffix)."""

from __future__ import annotations

import re
import secrets


def engine_id(client_id: str) -> str:
    """Return a unique engine request id: two requests of a client may have the same id."""
    return f"{client_id}-{secrets.token_hex(4)}"


def id_aliases(engine_id: str) -> frozenset[str]:
    """Return every id under which a client may know an engine request, including the engine's own.

    The others lack the sequence number, the random suffix and the prompt number.
    """
    whole = re.sub(r"#\d+$", "", engine_id)
    client_id = whole.rpartition("-")[0]
    return frozenset({engine_id, whole, client_id, re.sub(r"-\d+$", "", client_id)} - {""})
