"""What a tensor of an adapter's file is: a factor of a product of low rank, or a weight or bias in
place of the model's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from builtin_plugins.features.lora.stored import BadAdapter

_ROOT: Final = re.compile(r"^base_model\.model\.")
_FORMS: Final = (
    (re.compile(r"(.+)\.lora_(A|B)(?:\.default)?\.weight"), "{}"),
    (re.compile(r"(.+)\.lora_embedding_(A|B)(?:\.default)?(?:\.weight)?"), "embedding {}"),
    (re.compile(r"(.+)\.lora_(B)(?:\.default)?\.bias"), "added bias"),
    (re.compile(r"(.+?)(?:\.modules_to_save(?:\.default)?|\.base_layer)?\.(weight|bias)"), "{}"),
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """Whose tensor it is, and what."""

    module: str
    """Name of the module that it is of, in the model that was trained."""
    role: str
    """"A", "B", "embedding A", "embedding B", "added bias", "weight" or "bias"."""


def meaning(name: str) -> Meaning:
    """Return what a tensor is by its name. Raises `BadAdapter`."""
    inner = _ROOT.sub("", name)
    if "lora_magnitude_vector" in inner:
        raise BadAdapter(
            f"{name!r:.200} is of DoRA, which is not served. Merge the adapter into its model "
            "instead."
        )
    for form, role in _FORMS:
        found = form.fullmatch(inner)
        if found is not None:
            return Meaning(found[1], role.format(found[2]))
    raise BadAdapter(f"{name!r:.200} is no tensor of a LoRA adapter.")
