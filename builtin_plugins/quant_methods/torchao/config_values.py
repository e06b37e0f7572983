"""Values of a torchao config: {"_type": name, "_data": fields or a name}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builtin_plugins.quant_methods.stored.config_fields import read_object


def read_value(value: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a torchao type and its fields; both empty for anything else."""
    if isinstance(value, Mapping):
        return (str(value.get("_type")), read_object(value, "_data"))
    return ("", {})


def name_of(value: Any) -> str:
    """Return the name of a type or choice in lower case."""
    name = value.get("_data") if isinstance(value, Mapping) else value
    return str(name or "").lower()
