"""Tiny weights are unpacked in several pieces, as large ones are."""

from __future__ import annotations

import pytest

from builtin_plugins.quant_methods.stored import formats


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "UNPACKED", 1)
    monkeypatch.setattr(formats, "LEAST_ROWS", 16)
