"""What is served: a table made by trying (`scripts/survey_models.py`), joined with the plugins that
are loaded.

Reads no config of a model and imports no torch, so it answers at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

TABLE: Final = Path(__file__).with_name("architectures.json")
ANY: Final = "any architecture"
"""What an entry gives that serves architectures without one of their own."""

PLAIN: Final = "plain weights"
"""What a quantization method gives that keeps weights as they are stored, in a device's order."""

How = Literal["native", "generic", "no"]


@dataclass(frozen=True, slots=True)
class Row:
    """One architecture."""

    architecture: str
    how: How
    """By an entry of its own, by one for any architecture, or not at all."""
    model_types: tuple[str, ...] = ()
    """transformers' names of configs that it is the causal language model of."""
    plugin: str = ""
    """Whose entry serves it."""
    reason: str = ""
    """Why it is not served."""
    sliding_window: bool | None = None
    """Whether its tiny form has layers that see a part of the text; None: it was not tried."""
    running_state: bool | None = None
    """Whether layers carry a state along instead of keys and values."""
    quantization: bool | None = None
    tensor_parallel: bool | None = None
    pooling: bool | None = None
    lora_targets: tuple[str, ...] = ()
    """Names of its linear layers."""
    formats: tuple[str, ...] = ()
    """Quantization methods whose checkpoints it takes, or that round plain ones: those of the
    plugins that are loaded.
    """


def rows(
    entries: Iterable[Any],
    table: Mapping[str, Mapping[str, Any]] | None = None,
    methods: Iterable[Any] = (),
) -> list[Row]:
    """Return every architecture of the table and of the loaded `models` entries, by name.

    `methods`: the loaded `quant_methods` entries, which every architecture takes that takes one.
    """
    table = read_table() if table is None else table
    owners = {registered.entry.name: registered for registered in entries}
    general = next((found for found in owners.values() if ANY in found.entry.gives), None)
    names = {name for name, found in owners.items() if ANY not in found.entry.gives}
    formats = tuple(
        sorted({found.entry.name for found in methods if PLAIN not in found.entry.gives})
    )
    found = [
        _row(name, owners.get(name), general, table.get(name, {}))
        for name in sorted(names | set(table))
    ]
    return [replace(row, formats=formats) if row.quantization else row for row in found]


def read_table() -> dict[str, dict[str, Any]]:
    """Return what was found when the architectures were tried."""
    found: dict[str, dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def _row(name: str, own: Any, general: Any, found: Mapping[str, Any]) -> Row:
    facts: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in found.items()
    }
    tried = facts.pop("tried", "")
    reason = facts.pop("reason", "")
    types = facts.pop("model_types", ())
    if own is not None:
        known = facts if tried == "native" else {}
        return Row(name, "native", types, plugin=own.plugin.name, **known)
    if tried == "native":
        return Row(name, "no", types, reason="the plugin that has it is not loaded")
    if general is None and not reason:
        return Row(name, "no", types, reason="no plugin for any architecture is loaded")
    if reason:
        return Row(name, "no", types, reason=reason)
    return Row(name, "generic", types, plugin=general.plugin.name, **facts)
