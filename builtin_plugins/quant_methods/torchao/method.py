"""Which layers of a torchao checkpoint are quantized: one config for all, or one by name, and names
of what stays plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.left_out import AllButListed
from builtin_plugins.quant_methods.common.names import MARK, Fits, Listed, expressions
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.patterns import Pattern
from builtin_plugins.quant_methods.stored.stated import names, section
from builtin_plugins.quant_methods.torchao.schemes import scheme
from core.api import ModelError

BY_NAME: Final = {"FqnToConfig": "fqn_to_config", "ModuleFqnToConfig": "module_fqn_to_config"}
DEFAULT: Final = "_default"


class TorchAo(AllButListed):
    """What transformers saves of a model with torchao's weights, as safetensors."""

    name = "torchao"
    example_config: Final = {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}},
        "modules_to_not_convert": ["lm_head"],
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(
            config,
            Listed(names(config or {}, "modules_to_not_convert"), expressions, anywhere=True),
        )
        stated = config.get("quant_type")
        if not isinstance(stated, Mapping) or not isinstance(stated.get("default"), Mapping):
            raise ModelError(
                f"quantization_config: quant_type is {stated!r:.100}; it is an object of "
                "torchao's, under the name default. "
                "Checkpoints that name a type by a word are pickled; save the model again with a "
                "newer version."
            )
        default = stated["default"]
        self._stated_plain = config.get("modules_to_not_convert")
        self._has_ends = bool(config.get("include_input_output_embeddings"))
        self._named: dict[str, StoredFormat | None] = {}
        self._others: StoredFormat | None = None
        field = BY_NAME.get(str(default.get("_type")))
        if field is not None:
            facts = section(default, "_data")
            by_name = section(facts, field) or section(facts, "module_fqn_to_config")
            self._named = {name: scheme(own) for name, own in by_name.items()}
            self._others = self._named.pop(DEFAULT, None)
        else:
            self._others = scheme(default)
        self._by_name = Listed(self._named, _whole)

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format of the layer's own name, of the first pattern that fits, or of all
        others.
        """
        named = self._by_name.find(prefix)
        return self._others if named is None else self._named[named]

    def decide_head(self, prefix: str) -> StoredFormat | None:
        """Return the same for the head, which is left out where the config neither includes it nor
        names others.
        """
        return None if self._stated_plain is None and not self._has_ends else self.decide(prefix)

    def decide_embedding(self, prefix: str) -> StoredFormat | None:
        """Return the same for the embedding, where the config includes it."""
        return self.decide(prefix) if self._has_ends else None


def _whole(text: str) -> Fits | None:
    """Read a regular expression behind its mark, which fits the whole name of a layer or of its
    weight.
    """
    if not text.startswith(MARK):
        return None
    pattern = Pattern(text.removeprefix(MARK))
    return lambda name: pattern.is_all_of(name) or pattern.is_all_of(f"{name}.weight")
