"""Base class of methods that quantize all layers except a list of the config.

Independent of formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builtin_plugins.quant_methods.common.module_names import NameList
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.method import StoredMethod

if TYPE_CHECKING:
    from core.api import EngineConfig


class ExcludeListMethod(StoredMethod):
    """Base of methods with an exclude list in the config.

    An excluded layer is still quantized if the file has all its quantized tensors, as tools read
    their lists differently. (`gate` in an AWQ config is an MoE router to transformers; to AutoAWQ
    it also matches `gate_proj`.)
    """

    _format: StoredFormat | None
    """Format of all weights that are not excluded, if they have one."""

    def __init__(self, config: Any, plain: NameList, engine: EngineConfig | None = None) -> None:
        super().__init__(config, engine)
        self._plain = plain

    def choose_format(self, prefix: str) -> StoredFormat | None:
        """Return the format, unless the layer is excluded."""
        stored = self.stored(prefix)
        if stored is None or self._plain.find(prefix) is None:
            return stored
        return stored if self._is_there(prefix, stored) else None

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format of a weight that is not excluded; by default the one format of all."""
        del prefix
        return self._format

    def _is_there(self, prefix: str, stored: StoredFormat) -> bool:
        """Return whether the checkpoint has all tensors of a format with more than the weight."""
        names = {suffix: [suffix] for suffix in stored.suffixes}
        for other, suffix in stored.other_names.items():
            names[suffix].append(other)
        found = [
            any(f"{prefix}.{name}" in self._checkpoint_dtypes for name in same)
            for same in names.values()
        ]
        return stored.suffixes != ("weight",) and all(found)
