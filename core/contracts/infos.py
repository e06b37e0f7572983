"""What features say of themselves when somebody looks: labels of a metric that is always 1, and
numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.contracts.registry import Registry
    from core.contracts.spreads import Spread

Say = Callable[[], Mapping[str, str]]
"""Returns label values, a moment's work; called where the feature's half beside the scheduler is,
between two steps.
"""


Count = Callable[[], Mapping[str, float]]
"""Returns numbers by the name of their metric, likewise; those of names that end with `_total`
never fall. Several numbers of one
metric differ in a label (`labelled`)."""


Spreads = Callable[[], Mapping[str, "Spread"]]
"""Returns histograms by the name of their metric, likewise."""


def labelled(name: str, label: str, value: str) -> str:
    """Return the name of one of several numbers of a metric: that with this value of the label,
    from a small fixed set.
    """
    return f"{name}{{{label}={value}}}"


def parted(said: str) -> tuple[str, dict[str, str]]:
    """Return a metric's name and the labels that a number was said with."""
    name, label, value = re.fullmatch(r"([^{]*)(?:{([^=]*)=(.*)})?", said, re.DOTALL).groups()  # type: ignore[union-attr]
    return name, {} if label is None else {label: value}


def infos_of(registry: Registry) -> dict[str, Say]:
    """Return who is asked in the process whose plugins these are, by the name of the metric;
    features add to it.
    """
    made: dict[str, Say] = registry.shared("infos", dict)
    return made


def numbers_of(registry: Registry) -> dict[str, Count]:
    """Return who is asked for numbers there, by feature; features add to it."""
    made: dict[str, Count] = registry.shared("numbers", dict)
    return made


def spreads_of(registry: Registry) -> dict[str, Spreads]:
    """Return who is asked for histograms there, by feature; features add to it."""
    made: dict[str, Spreads] = registry.shared("spreads", dict)
    return made
