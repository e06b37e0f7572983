"""vLLM's names of attention backends are taken, in capitals or not. Knows strings, and no backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def called(decisions: Mapping[str, Any], theirs: str, ours: str) -> dict[str, Any] | None:
    """Return the decision for the backend `ours` where `theirs` was asked for, None where it was
    not.
    """
    wanted = str(decisions.get("attention_backend", ""))
    return {"attention_backend": ours} if wanted != ours and wanted.upper() == theirs else None
