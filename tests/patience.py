"""How long tests wait for what has to come."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 600.0
"""Longest wait for one thing; on a machine busy with others everything comes, late."""
