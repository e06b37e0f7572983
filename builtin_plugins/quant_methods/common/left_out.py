"""Methods whose layers are stored in formats but for those that a list of the config leaves out.

Knows no format.
"""

from __future__ import annotations

from typing import Any

from builtin_plugins.quant_methods.common.names import Listed
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.method import StoredMethod


class AllButListed(StoredMethod):
    """Of layers that the list names, too, the file may say that they are stored: tools read their
    own lists in several ways.

    (`gate` of an AWQ config is a mixture's router to transformers, and `gate_proj` as well to
    AutoAWQ.)
    """

    _format: StoredFormat | None
    """Of all weights that are not left out, where they have one."""

    def __init__(self, config: Any, plain: Listed) -> None:
        super().__init__(config)
        self._plain = plain

    def decide(self, prefix: str) -> StoredFormat | None:
        """Return the format, unless the layer is left out."""
        stored = self.stored(prefix)
        if stored is None or self._plain.find(prefix) is None:
            return stored
        return stored if self._is_there(prefix, stored) else None

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format that the weight with this prefix has where the list does not name it:
        mostly the one of all.
        """
        del prefix
        return self._format

    def _is_there(self, prefix: str, stored: StoredFormat) -> bool:
        """Say whether the checkpoint is known to have all tensors of a format, which are more than
        the weight.
        """
        names = {suffix: [suffix] for suffix in stored.suffixes}
        for other, suffix in stored.other_names.items():
            names[suffix].append(other)
        found = [
            any(f"{prefix}.{name}" in self._stored_as for name in same) for same in names.values()
        ]
        return stored.suffixes != ("weight",) and all(found)
