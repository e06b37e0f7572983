"""How a checkpoint says that its weights are quantized: in config.json, or in files that older
tools wrote beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from builtin_plugins.model_sources.huggingface.files import read_json
from core.api import ModelError

OLDER: Final = "compression_config"
FIELDS: Final = ("quantization_config", OLDER)
BESIDE: Final = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
"""Files that say it where config.json does not, and the method of whose tools they are."""


def quantization_of(stated: Mapping[str, Any], path: Path) -> str | None:
    """Return the name of the quantization method, None where there is none."""
    name = next((name for name in FIELDS if stated.get(name)), None)
    if name is None:
        return None
    facts = stated[name]
    method = facts.get("quant_method") if isinstance(facts, Mapping) else None
    if not isinstance(method, str):
        raise ModelError(
            f"{name} in {path} is {facts!r:.100}, which names no quant_method, so the weights "
            "cannot be read. "
            "Restore the file from where the model came."
        )
    return method


def quantization_beside(folder: Path, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return `quantization_config` as config.json would have it today, from an older field or a
    file beside it.

    A config.json that has the field, be it null, is not added to.
    """
    if stated.get(OLDER) and not stated.get(FIELDS[0]):
        return {FIELDS[0]: stated[OLDER]}
    found = next((folder / name for name in BESIDE if (folder / name).is_file()), None)
    if found is None or any(name in stated for name in FIELDS):
        return {}
    facts = read_json(found)
    inner = facts.get("quantization")  # modelopt's tools put everything into it
    if isinstance(inner, Mapping):
        facts = dict(inner)
    return {FIELDS[0]: {"quant_method": BESIDE[found.name], **facts}}
