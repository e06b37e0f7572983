"""Settings of AutoRound checkpoints for tests."""

from __future__ import annotations

from typing import Any


def config(packing: str, *, sym: bool = True, **more: Any) -> dict[str, Any]:
    facts = {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 16,
        "sym": sym,
        "data_type": "int",
    }
    return {**facts, "packing_format": packing, **more}
