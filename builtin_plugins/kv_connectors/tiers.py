"""Several tiers behind one cache, as they are shown: one that is as well as the worst of them, and
what each counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from builtin_plugins.kv_connectors.scheduling import Traffic
from core.contracts.infos import labelled

WORST_FIRST: Final = ("degraded", "opening", "ready")


class Tiers:
    """What all of them say, in the order in which they are asked for blocks."""

    def __init__(self, tiers: Sequence[Traffic]) -> None:
        self._tiers = tiers

    def info(self) -> Mapping[str, str]:
        """Return the labels of one: all names, the worst of their states, and its reason."""
        said = [tier.info() for tier in self._tiers]
        worst = min(said, key=lambda each: WORST_FIRST.index(each["state"]))
        return {**worst, "connector": ", ".join(each["connector"] for each in said)}

    def numbers(self) -> Mapping[str, float]:
        """Return what each counts, by metric and tier."""
        numbers = dict[str, float]()
        seen = Counter[str]()
        for tier in self._tiers:
            name = tier.info()["connector"]
            seen[name] += 1
            shown = name if seen[name] == 1 else f"{name} {seen[name]}"
            numbers |= {
                labelled(metric, "tier", shown): value for metric, value in tier.numbers().items()
            }
        return numbers
