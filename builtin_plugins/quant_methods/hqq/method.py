"""Which layers of an HQQ checkpoint are packed, and how: one setting for all, or one for each kind
of layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.left_out import AllButListed
from builtin_plugins.quant_methods.common.names import Listed, expressions
from builtin_plugins.quant_methods.hqq.format import PER_PACKED, HqqFormat
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.stated import names, section, sections
from core.api import ModelError

WEIGHTS: Final = "weight_quant_params"
NOT_READ: Final = ("scale_quant_params", "zero_quant_params")


class Hqq(AllButListed):
    """HQQ, as transformers saves it."""

    name = "hqq"
    example_config: Final = {
        "quant_method": "hqq",
        "quant_config": {WEIGHTS: {"nbits": 4, "group_size": 64, "axis": 1}},
        "skip_modules": ["lm_head"],
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(
            config, Listed(names(config or {}, "skip_modules"), expressions, anywhere=True)
        )
        stated = section(config, "quant_config")
        self._all = _format(stated) if WEIGHTS in stated else None
        by_tag = {} if WEIGHTS in stated else sections(config, "quant_config")
        self._tags = {tag: _format(facts) for tag, facts in by_tag.items() if facts}
        self._kinds = Listed(
            self._tags, anywhere=True
        )  # a kind is what is behind the layer's number, without an expert's
        if self._all is None and not self._tags:
            raise ModelError(
                f"quantization_config: quant_config has no {WEIGHTS}, which says how many bits "
                "there are; restore the config "
                "from where the model came."
            )

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format of all layers, or that of the layer's kind."""
        tag = None if self._all else self._kinds.find(prefix)
        return self._all if tag is None else self._tags[tag]

    def decide_head(self, prefix: str) -> StoredFormat | None:
        """Return the same for the head, which is a linear layer to the tool."""
        return self.decide(prefix)


def _format(facts: Mapping[str, Any]) -> HqqFormat:
    weights = section(facts, WEIGHTS)
    bits = weights.get("nbits")
    group = weights.get("group_size")
    axis = weights.get("axis", 0)
    sized = group is None or (isinstance(group, int) and group > 0)
    if (
        not isinstance(bits, int)
        or bits not in PER_PACKED
        or not sized
        or axis not in (0, 1)
        or not weights.get("channel_wise", True)
    ):
        raise ModelError(
            f"quantization_config: {bits!r:.80} bits in groups of {group!r:.80} along axis "
            f"{axis!r:.80}, channel_wise "
            f"{weights.get('channel_wise', True)!r:.80}; hqq has "
            f"{', '.join(map(str, sorted(PER_PACKED)))} bits and groups along "
            "axis 0 or 1."
        )
    second = [name for name in NOT_READ if facts.get(name)]
    if second:
        raise ModelError(
            f"quantization_config: {', '.join(second)}: scales or zero points that are quantized "
            "themselves are not read. "
            "Write the checkpoint again without them."
        )
    return HqqFormat(bits, group, axis)
