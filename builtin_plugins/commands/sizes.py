"""Bytes as people read them."""

from __future__ import annotations

from typing import Final

UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


def show_bytes(num_bytes: float) -> str:
    """Return a size with three digits or more: `947 bytes`, `1.75 MiB`, `112 KiB`."""
    size = float(num_bytes)
    unit = 0
    while round(abs(size)) >= 1024 and unit < len(UNITS) - 1:
        size = size / 1024
        unit = unit + 1
    digits = 0 if unit == 0 or abs(size) >= 100 else 1 if abs(size) >= 10 else 2
    return f"{size:,.{digits}f} {UNITS[unit]}"
