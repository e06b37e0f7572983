"""Under which names clients know a request: what answers show is the engine's id without what makes
that one of a kind.
"""

from __future__ import annotations

import re


def names_of(engine_id: str) -> frozenset[str]:
    """Return the ids under which answers may show a request, and its own: without what is random,
    the number of its
    prompt, and that of its sequence.
    """
    whole = re.sub(r"#\d+$", "", engine_id)
    shown = whole.rpartition("-")[0]
    return frozenset({engine_id, whole, shown, re.sub(r"-\d+$", "", shown)} - {""})
