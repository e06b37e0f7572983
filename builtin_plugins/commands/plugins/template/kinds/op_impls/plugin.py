"""Entries of acme; their targets are imported when they are selected."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_op_impls() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "rms_norm/acme",
            "engine_acme.ops:rms_norm",
            "rms_norm in one pass",
            priority=-10,
            when={"device": "cpu"},
        )
    ]
