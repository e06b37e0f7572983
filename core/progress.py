"""How far a call with many requests is, shown as the caller wants it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Progress = bool | Callable[..., Any]
"""Whether to show a bar, or what makes the caller's own."""


def progress_bar(use_tqdm: Progress, total: int) -> Any:
    """Return a tqdm bar, what the caller's own factory makes, or something silent."""
    if not use_tqdm or total == 0:
        return SimpleNamespace(update=lambda count: None, close=lambda: None)
    if callable(use_tqdm):
        return use_tqdm(total=total, desc="Processed prompts", unit="req")
    from tqdm import tqdm  # lazy: only interactive use needs it

    return tqdm(total=total, desc="Processed prompts", unit="req", dynamic_ncols=True, disable=None)
