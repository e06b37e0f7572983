"""Options that need another setting (`Option.needs`)."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.config.fields import Field


def unmet_need(fields: Mapping[str, Field], settings: Mapping[str, Any]) -> str:
    """Return the error of the first option that lacks its setting; empty: none."""
    given = [(name, f"{name}={each.value}") for name, each in settings.items() if each.value]
    for name, setting in settings.items():
        found = fields[name]
        if not found.needs or setting.value == found.default:
            continue
        if any(fnmatchcase(each, need) for pair in given for each in pair for need in found.needs):
            continue
        flags = " or ".join("--" + need.replace("_", "-") for need in found.needs)
        return (
            f"{found.flag}: got {setting.value!r:.80}; it has no effect without {flags}. Add that, "
            f"or remove {found.flag}."
        )
    return ""
