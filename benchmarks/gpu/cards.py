"""GPUs that predictions are made for, and the audited Triton programs of their architectures."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.gpu.ceilings import Ceilings

AUDIT: Final = Path(__file__).with_name("static.md")
READ_SHARE: Final = 0.9
PRODUCT_SHARE: Final = 0.8
"""Shares of a datasheet's rates that reads and library products reach; `roofline` measures them."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU by its datasheet."""

    name: str
    target: str
    """Heading of its architecture in the audit."""
    processors: int
    clock_hz: float
    read_bytes_s: float
    flop_s: float
    """bfloat16 with dense matrices."""
    float8_flop_s: float
    float4_flop_s: float = math.nan
    mma_sync_share: float = 0.62
    """Share of the product rate that `mma.sync` reaches, besides `wgmma` or `tcgen05.mma`."""

    @property
    def ceilings(self) -> Ceilings:
        """Return the rates to expect of it before they are measured."""
        return Ceilings(
            self.read_bytes_s * READ_SHARE,
            self.read_bytes_s * READ_SHARE,
            self.flop_s * PRODUCT_SHARE,
            self.float8_flop_s * PRODUCT_SHARE,
            self.float4_flop_s * PRODUCT_SHARE,
        )


CARDS: Final = (
    Card("H100 SXM", "sm_90", 132, 1.755e9, 3.35e12, 989e12, 1979e12),
    Card("H200 SXM", "sm_90", 132, 1.755e9, 4.8e12, 989e12, 1979e12),
    # `mma.sync` is as fast per multiprocessor and clock as on Hopper.
    Card("B200", "sm_100", 148, 1.965e9, 8.0e12, 2250e12, 4500e12, 9000e12, 0.34),
)


@dataclass(frozen=True, slots=True)
class Audited:
    """What the audit says of one program."""

    warps: int
    resident: int
    """Programs at a time on a multiprocessor."""
    flying_bytes: int
    """Bytes that a program reads before it waits for them."""
    products: str


def audited(target: str, model: str) -> dict[str, list[Audited]]:
    """Return the programs of a model by kernel, in the order of the audit's table."""
    found: dict[str, list[Audited]] = {}
    section = AUDIT.read_text().partition(f"## {target}\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 11 and model in cells[1].split(", "):
            found.setdefault(cells[0], []).append(_audited(cells))
    return found


def _audited(cells: list[str]) -> Audited:
    warps, shared, resident = (int(cells[column]) for column in (2, 5, 6))
    threads = 32 * warps
    copied = min(threads * _bytes(cells[8]), shared)
    return Audited(warps, resident, threads * _bytes(cells[7]) + copied, cells[10])


def _bytes(accesses: str) -> int:
    """Return the sum of accesses such as `16x4 2x1`."""
    counts = Counter(
        {int(size): int(count) for size, count in re.findall(r"(\d+)x(\d+)", accesses)}
    )
    return sum(size * count for size, count in counts.items())
