"""Errors of single transfers. They reach the scheduler half as text."""

from __future__ import annotations

from typing import Final

from builtin_plugins.kv_connectors.api import Damaged


class Gone(Exception):
    """A stored block was deleted by another process."""


class ChecksumMismatch(Exception):
    """A remote block does not match its checksum. It may have been evicted during the read."""


DAMAGED: Final = f"{Damaged.__name__}: "
"""Prefix of errors that report a damaged block."""
GONE: Final = f"{Gone.__name__}: "
"""Prefix of errors that report a missing block."""
MISMATCH: Final = "LayoutMismatch: "
"""Prefix of errors of peers with another block layout; the differences follow it."""
WEIGHTS_CHANGED: Final = "the weights were changed"
"""Error of transfers planned before a weight reload. It does not count as a failure."""
TIMED_OUT: Final = "it takes longer than timeout_s"
