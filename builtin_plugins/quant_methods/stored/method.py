"""The quantization method of checkpoints that are stored in formats.

Knows layers; which format a layer has is a subclass's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from builtin_plugins.quant_methods.stored.experts import StoredExperts
from builtin_plugins.quant_methods.stored.keeping import Unaided
from builtin_plugins.quant_methods.stored.layers import StoredLinear
from core.errors import ModelError

if TYPE_CHECKING:
    from builtin_plugins.quant_methods.stored.formats import StoredFormat
    from core.contracts.part import Part


PLAIN: Final = (torch.float32, torch.bfloat16, torch.float16)


class StoredMethod:
    """Gives each layer the format that `decide` says its weights are stored in."""

    name = ""
    cure = "Leave --quantization out, or round them with int8 or int4."
    """What to do where a checkpoint is stored in no format at all."""
    rounds_plain = False
    """It is made for plain checkpoints, which its formats round."""

    def __init__(self, config: Any) -> None:
        if not config and not self.rounds_plain:
            raise ModelError(
                f"--quantization {self.name} reads checkpoints that are stored so, and this one's "
                "config.json says nothing "
                f"of it; weights are not made smaller here. {self.cure}"
            )
        self.unaided = Unaided(self.name)
        self._decided: dict[str, StoredFormat | None] = {}
        self._stored_as: Mapping[str, torch.dtype] = {}

    def stored_as(self, dtypes: Mapping[str, torch.dtype]) -> None:
        """Take what a checkpoint has: a weight that is plain there is so, whatever its config says.

        Tools that quantize linear layers alone pass over experts that are one tensor in memory,
        save them as plain weights of each, and name them nowhere (transformers 5 with bitsandbytes
        or torchao).
        """
        self._stored_as = dtypes

    def decide(self, prefix: str) -> StoredFormat | None:
        """Return the format of the weight with this prefix; None: it is plain. Asked once for each."""
        raise NotImplementedError

    def decide_head(self, prefix: str) -> StoredFormat | None:
        """Return that of the head, which most formats leave plain."""
        del prefix
        return None

    def decide_embedding(self, prefix: str) -> StoredFormat | None:
        """Return that of the embedding, which most formats leave plain."""
        del prefix
        return None

    def format_of(self, prefix: str) -> StoredFormat | None:
        """Return what was decided."""
        if prefix not in self._decided:
            self._decided[prefix] = self._unless_plain(prefix, self.decide(prefix))
        return self._decided[prefix]

    def _unless_plain(self, prefix: str, stored: StoredFormat | None) -> StoredFormat | None:
        if (
            stored is None
            or stored.reads_plain
            or self._stored_as.get(f"{prefix}.weight") not in PLAIN
        ):
            return stored
        others = [f"{prefix}.{suffix}" for suffix in stored.suffixes if suffix != "weight"]
        return stored if any(name in self._stored_as for name in others) else None

    def formats_of(self, parts: Mapping[str, Part]) -> dict[str, StoredFormat | None]:
        """Return the formats of a layer's weights.

        Raises `ModelError` where one cannot have its sizes, or cannot be cut so.
        """
        found = {prefix: self.format_of(prefix) for prefix in parts}
        for prefix, stored in found.items():
            try:
                if stored is not None:
                    stored.check(parts[prefix])
            except ModelError as error:
                raise ModelError(f"{prefix} {error}") from error
        return found

    def linear(self, prefix: str) -> StoredLinear:
        """Return a fresh method."""
        return StoredLinear(self, prefix)

    def experts(self, prefix: str) -> StoredExperts:
        """Return a fresh method."""
        return StoredExperts(self, prefix)

    def head(self, prefix: str) -> StoredLinear | None:
        """Return a fresh method where the head is stored in a format."""
        self._decided[prefix] = self._unless_plain(prefix, self.decide_head(prefix))
        return None if self._decided[prefix] is None else StoredLinear(self, prefix)

    def embedding(self, prefix: str) -> StoredLinear | None:
        """Return a fresh method where the embedding is stored in a format."""
        self._decided[prefix] = self._unless_plain(prefix, self.decide_embedding(prefix))
        return None if self._decided[prefix] is None else StoredLinear(self, prefix)


def mentions(prefix: str, names: Iterable[str]) -> bool:
    """Say whether one of `names` is the module, one that holds it, or its last name."""
    return any(
        prefix == name or prefix.startswith(f"{name}.") or prefix.endswith(f".{name}")
        for name in names
    )
