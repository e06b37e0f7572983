"""What a request cost (`--request-costs`), as part of the usage of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_PREFIX: Final = "request_cost_"


def cost_fields(counts: Mapping[str, float]) -> dict[str, Any]:
    """Return the field `cost` of a usage object; empty unless costs are among the counts."""
    cost: dict[str, float] = {
        name.removeprefix(_PREFIX): value
        for name, value in counts.items()
        if name.startswith(_PREFIX)
    }
    if not cost:
        return {}
    return {"cost": {**cost, "computed_tokens": int(cost["computed_tokens"])}}
