"""Attention in readable torch: slow, exact, the meaning of the others."""

from core.api import Entry, hookimpl


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the backend."""
    target = "builtin_plugins.attention_backends.reference.backend:ReferenceAttention"
    return [
        Entry(
            "reference",
            target,
            "readable torch on any device, the oracle of the others",
            priority=-100,
        )
    ]
