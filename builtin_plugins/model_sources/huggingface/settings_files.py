"""Reading of a model's quantization config in any of its forms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from builtin_plugins.model_sources.settings_file import read_settings_object
from core.api import ModelError

OLDER: Final = "compression_config"
FIELDS: Final = ("quantization_config", OLDER)
MAX_METHOD_LENGTH: Final = 100
"""Length limit of a quantization method's name, in characters."""
SIDE_FILES: Final = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
"""Files of older quantization tools next to config.json, and their method."""


def quantization_of(stated: Mapping[str, Any], path: Path) -> str | None:
    """Return the name of the quantization method; None for an unquantized checkpoint."""
    name = next((name for name in FIELDS if stated.get(name)), None)
    if name is None:
        return None
    facts = stated[name]
    method = facts.get("quant_method") if isinstance(facts, Mapping) else None
    if not isinstance(method, str) or len(method) > MAX_METHOD_LENGTH:
        raise ModelError(
            f"{name} in {path}: got {facts!r:.100}; expected an object with a quant_method. "
            "Restore the file from the model's source."
        )
    return method


def quantization_from_side_files(folder: Path, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return `quantization_config` from an older field or a side file.

    Returns nothing if config.json has the field, even if it is null.
    """
    if stated.get(OLDER) and not stated.get(FIELDS[0]):
        return {FIELDS[0]: stated[OLDER]}
    found = next((folder / name for name in SIDE_FILES if (folder / name).is_file()), None)
    if found is None or any(name in stated for name in FIELDS):
        return {}
    facts = read_settings_object(found)
    inner = facts.get("quantization")  # ModelOpt nests all fields in it
    if isinstance(inner, Mapping):
        facts = dict(inner)
    return {FIELDS[0]: {"quant_method": SIDE_FILES[found.name], **facts}}
