"""Base class of quantization methods for stored formats.

A subclass chooses the format of each layer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from builtin_plugins.quant_methods.stored.activations import OPTION, ActivationQuantization
from builtin_plugins.quant_methods.stored.backends import DequantizedFallback
from builtin_plugins.quant_methods.stored.experts import StoredExperts
from builtin_plugins.quant_methods.stored.layers import StoredLinear
from core.api import ModelError

if TYPE_CHECKING:
    from builtin_plugins.quant_methods.stored.formats import StoredFormat
    from core.api import EngineConfig
    from core.model_spec.weight_shard import WeightShard


log = logging.getLogger(__name__)

OUTPUT_SCALES: Final = ("output_scale", "output_zero_point")
"""Last names of tensors with which other engines round the outputs of layers."""
PLAIN: Final = (torch.float32, torch.bfloat16, torch.float16)


class StoredMethod:
    """Gives each layer the format returned by `choose_format`."""

    name = ""
    hint = "Leave --quantization out, or round them with int8 or int4."
    """Advice in the error for a checkpoint without a quantization config."""
    options: tuple[str, ...] = (OPTION,)
    """Options of quantization methods that it reads."""
    quantizes_on_load = False
    """Whether the method quantizes plain checkpoints while they load."""

    def __init__(self, config: Any, engine: EngineConfig | None = None) -> None:
        if not config and not self.quantizes_on_load:
            raise ModelError(
                f"--quantization {self.name} loads checkpoints that {self.name} quantized; this "
                "one's config.json has no quantization_config. It does not quantize on the fly. "
                f"{self.hint}"
            )
        self.fallback = DequantizedFallback(self.name)
        self.activations = ActivationQuantization(self.name, engine)
        self._formats: dict[str, StoredFormat | None] = {}
        self._checkpoint_dtypes: Mapping[str, torch.dtype] = {}

    def set_checkpoint_dtypes(self, dtypes: Mapping[str, torch.dtype]) -> None:
        """Set the checkpoint's dtypes; they override the config where a weight is plain.

        Tools that quantize only linear layers skip experts that are one tensor in memory. They
        save these as plain weights per expert and list them nowhere (transformers 5 with
        bitsandbytes or torchao).
        """
        self._checkpoint_dtypes = dtypes
        unused = [name for name in dtypes if self._is_unused(*name.rpartition(".")[::2])]
        if unused:
            log.warning(
                "%s: %d stored scales of outputs (such as %s) are not used: outputs of layers are "
                "not rounded",
                *(self.name, len(unused), unused[0]),
            )

    def check_used(self) -> None:
        """Raise `ModelError` for settings without effect on this checkpoint."""
        self.activations.check_used()

    def _is_unused(self, prefix: str, suffix: str) -> bool:
        """Return whether a tensor is the scale of a layer's outputs, and not of cached ones."""
        stored = self.format_of(prefix) if suffix in OUTPUT_SCALES else None
        return stored is not None and suffix in stored.optional_suffixes

    def choose_format(self, prefix: str) -> StoredFormat | None:
        """Return the format of the weight with this prefix; None: it is plain.

        Called once per prefix.
        """
        raise NotImplementedError

    def choose_head_format(self, prefix: str) -> StoredFormat | None:
        """Return the format of the head; plain by default."""
        del prefix
        return None

    def choose_embedding_format(self, prefix: str) -> StoredFormat | None:
        """Return the format of the embedding; plain by default."""
        del prefix
        return None

    def format_of(self, prefix: str) -> StoredFormat | None:
        """Return the chosen format, cached."""
        if prefix not in self._formats:
            self._formats[prefix] = self._unless_plain(prefix, self.choose_format(prefix))
        return self._formats[prefix]

    def _unless_plain(self, prefix: str, stored: StoredFormat | None) -> StoredFormat | None:
        if (
            stored is None
            or stored.quantizes_on_load
            or self._checkpoint_dtypes.get(f"{prefix}.weight") not in PLAIN
        ):
            return stored
        others = [f"{prefix}.{suffix}" for suffix in stored.suffixes if suffix != "weight"]
        return stored if any(name in self._checkpoint_dtypes for name in others) else None

    def checked_formats(self, parts: Mapping[str, WeightShard]) -> dict[str, StoredFormat | None]:
        """Return the formats of a layer's weights.

        Raises `ModelError` for sizes that a format cannot store or shard.
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
        """Return a new linear method."""
        return StoredLinear(self, prefix)

    def experts(self, prefix: str) -> StoredExperts:
        """Return a new experts method."""
        return StoredExperts(self, prefix)

    def head(self, prefix: str) -> StoredLinear | None:
        """Return a new method if the head is quantized."""
        self._formats[prefix] = self._unless_plain(prefix, self.choose_head_format(prefix))
        return None if self._formats[prefix] is None else StoredLinear(self, prefix)

    def embedding(self, prefix: str) -> StoredLinear | None:
        """Return a new method if the embedding is quantized."""
        self._formats[prefix] = self._unless_plain(prefix, self.choose_embedding_format(prefix))
        return None if self._formats[prefix] is None else StoredLinear(self, prefix)


def mentions(prefix: str, names: Iterable[str]) -> bool:
    """Return whether one of `names` is the module, a module that contains it, or its last name."""
    return any(
        prefix == name or prefix.startswith(f"{name}.") or prefix.endswith(f".{name}")
        for name in names
    )
