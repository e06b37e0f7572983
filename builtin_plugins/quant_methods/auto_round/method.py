"""AutoRound checkpoints: GPTQ's or AWQ's layout, with bits and group size per layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.model_sources.api import Pattern
from builtin_plugins.quant_methods.awq.method import BITS as AWQ_BITS
from builtin_plugins.quant_methods.awq.method import AwqFormat
from builtin_plugins.quant_methods.common.module_names import REGEX_CHARS, Matcher, NameList
from builtin_plugins.quant_methods.gptq.method import BITS, GptqFormat
from builtin_plugins.quant_methods.stored.activations import warn_unsupported
from builtin_plugins.quant_methods.stored.config_fields import read_names, read_objects
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.method import StoredMethod
from core.api import ModelError

PLAIN_BITS: Final = 16
ZERO_POINT_OFFSET: Final = {"auto_round": 0, "auto_round:auto_gptq": 1, "auto_round:gptq": 1}
"""By packing format: the offset subtracted from GPTQ zero points."""
BLOCK_FIELDS: Final = ("block_name_to_quantize", "to_quant_block_names")
AWQ: Final = ("auto_round:auto_awq", "auto_round:awq")


class AutoRound(StoredMethod):
    """Checkpoints of Intel's AutoRound."""

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
        if (
            self._packing not in (*ZERO_POINT_OFFSET, *AWQ)
            or config.get("data_type", "int") != "int"
        ):
            raise ModelError(
                f"quantization_config: packing_format: got {self._packing!r:.80} with data_type "
                f"{config.get('data_type')!r:.80}; expected one of "
                f"{', '.join((*ZERO_POINT_OFFSET, *AWQ))} with data_type int. Export the "
                "checkpoint in one of these."
            )
        if config.get("act_bits") not in (None, 0, PLAIN_BITS, 2 * PLAIN_BITS):
            warn_unsupported("act_bits", config["act_bits"])
        self._overrides = read_objects(config, "extra_config")
        self._named = NameList(self._overrides, _read_regex)
        self._blocks = NameList(_blocks(config))
        self._has_blocks = bool(_blocks(config))
        self._format(config)

    def choose_format(self, prefix: str) -> StoredFormat | None:
        """Return the format from the layer's own settings, or from those of its quantized block."""
        override = self._settings(prefix)
        if override is not None:
            return self._format({**self._config, **override})
        inside = not self._has_blocks or self._blocks.find(prefix) is not None
        return self._format(self._config) if inside else None

    def choose_head_format(self, prefix: str) -> StoredFormat | None:
        """Return the head's format if the head has settings of its own."""
        override = self._settings(prefix)
        return None if override is None else self._format({**self._config, **override})

    def _settings(self, prefix: str) -> Mapping[str, Any] | None:
        """Return a layer's own settings, matched by name or pattern."""
        named = self._named.find(prefix)
        return None if named is None else self._overrides[named]

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
                f"quantization_config: got {bits!r:.80} bits with group_size {group!r:.80}; "
                f"{self._packing} expects {', '.join(map(str, allowed))} bits and group_size -1 (a "
                "row) or more."
            )
        if self._packing in AWQ:
            return AwqFormat(group)
        symmetric = facts.get("sym") is True
        return GptqFormat(
            bits,
            group,
            is_symmetric=symmetric,
            has_g_idx=False,
            zero_point_offset=ZERO_POINT_OFFSET[self._packing],
        )


def _read_regex(text: str) -> Matcher | None:
    """Read a regular expression that matches any part of a name."""
    return Pattern(text).search if any(sign in text for sign in REGEX_CHARS) else None


def _blocks(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the quantized blocks, from a list or a comma-separated text."""
    field = next((field for field in BLOCK_FIELDS if config.get(field)), BLOCK_FIELDS[0])
    stated = config.get(field)
    if isinstance(stated, str):
        return tuple(block.strip() for block in stated.split(",") if block.strip())
    return read_names(config, field)
