"""Timeouts of tests."""

from __future__ import annotations

from typing import Final

TIMEOUT_S: Final = 600.0
"""Longest wait for one event, in seconds; a loaded machine may need it."""
