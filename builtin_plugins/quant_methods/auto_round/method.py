"""Which layers of an AutoRound checkpoint are packed, and how: GPTQ's or AWQ's layout, with bits
and groups by layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.awq.format import BITS as AWQ_BITS
from builtin_plugins.quant_methods.awq.format import AwqFormat
from builtin_plugins.quant_methods.common.names import SIGNS, Fits, Listed
from builtin_plugins.quant_methods.gptq.format import BITS, GptqFormat
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.stored.patterns import Pattern
from builtin_plugins.quant_methods.stored.stated import names, sections
from core.api import ModelError

PLAIN_BITS: Final = 16
LESS: Final = {"auto_round": 0, "auto_round:auto_gptq": 1, "auto_round:gptq": 1}
"""By packing: what GPTQ's zero points are stored less by."""
BLOCKS: Final = ("block_name_to_quantize", "to_quant_block_names")
AWQ: Final = ("auto_round:auto_awq", "auto_round:awq")


class AutoRound(StoredMethod):
    """What Intel's AutoRound writes."""

    name = "auto-round"
    example_config: Final = {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "data_type": "int",
        "packing_format": "auto_round:auto_gptq",
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._config: Mapping[str, Any] = config
        self._packing = str(
            config.get("packing_format") or config.get("backend") or "auto_round:auto_gptq"
        )
        if self._packing not in (*LESS, *AWQ) or config.get("data_type", "int") != "int":
            raise ModelError(
                f"quantization_config: packing_format is {self._packing!r:.80}, data_type "
                f"{config.get('data_type')!r:.80}; read are "
                f"{', '.join((*LESS, *AWQ))} of type int. Export the checkpoint in one of them."
            )
        self._special = sections(config, "extra_config")
        self._named = Listed(self._special, _found_anywhere)
        self._blocks = Listed(_blocks(config))
        self._has_blocks = bool(_blocks(config))
        self._format(config)

    def decide(self, prefix: str) -> StoredFormat | None:
        """Return the layer's format: its own settings where it has some, else those of all in the
        blocks that are named.
        """
        special = self._settings(prefix)
        if special is not None:
            return self._format({**self._config, **special})
        inside = not self._has_blocks or self._blocks.find(prefix) is not None
        return self._format(self._config) if inside else None

    def decide_head(self, prefix: str) -> StoredFormat | None:
        """Return the head's format where it has settings of its own."""
        special = self._settings(prefix)
        return None if special is None else self._format({**self._config, **special})

    def _settings(self, prefix: str) -> Mapping[str, Any] | None:
        """Return a layer's settings, by its name or by a pattern."""
        named = self._named.find(prefix)
        return None if named is None else self._special[named]

    def _format(self, facts: Mapping[str, Any]) -> StoredFormat | None:
        bits = facts.get("bits")
        group = facts.get("group_size", 128)
        if isinstance(bits, int) and bits >= PLAIN_BITS:
            return None
        allowed = (AWQ_BITS,) if self._packing in AWQ else BITS
        if (
            not isinstance(bits, int)
            or bits not in allowed
            or not isinstance(group, int)
            or not (group == -1 or group > 0)
        ):
            raise ModelError(
                f"quantization_config: {bits!r:.80} bits in groups of {group!r:.80}; "
                f"{self._packing} has "
                f"{', '.join(map(str, allowed))} bits and groups of -1 (a row) or more inputs."
            )
        if self._packing in AWQ:
            return AwqFormat(group)
        symmetric = facts.get("sym") is True
        return GptqFormat(
            bits, group, is_symmetric=symmetric, is_ordered=False, stored_less=LESS[self._packing]
        )


def _found_anywhere(text: str) -> Fits | None:
    """Read a regular expression, which fits any part of a name."""
    return Pattern(text).is_in if any(sign in text for sign in SIGNS) else None


def _blocks(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of what holds the layers that are packed: of a list, or of words with commas
    between.
    """
    field = next((field for field in BLOCKS if config.get(field)), BLOCKS[0])
    stated = config.get(field)
    if isinstance(stated, str):
        return tuple(block.strip() for block in stated.split(",") if block.strip())
    return names(config, field)
