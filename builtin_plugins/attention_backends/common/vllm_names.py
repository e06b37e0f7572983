"""vLLM's names of attention backends, in any case. Knows no backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def resolve_vllm_name(
    decisions: Mapping[str, Any], theirs: str, ours: str
) -> dict[str, Any] | None:
    """Return the decision for backend `ours` if the flag has vLLM's name `theirs`; else None."""
    name = str(decisions.get("attention_backend", ""))
    return {"attention_backend": ours} if name != ours and name.upper() == theirs else None
