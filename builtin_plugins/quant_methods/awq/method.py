"""Which layers of an AWQ checkpoint are packed: all but those that its config names."""

from __future__ import annotations

from typing import Any, Final

from builtin_plugins.quant_methods.awq.format import BITS, AwqFormat
from builtin_plugins.quant_methods.common.left_out import AllButListed
from builtin_plugins.quant_methods.common.names import Listed, expressions
from builtin_plugins.quant_methods.stored.stated import names
from core.api import ModelError


class Awq(AllButListed):
    """AWQ in its usual version, GEMM."""

    name = "awq"
    example_config: Final = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 128,
        "version": "gemm",
        "zero_point": True,
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(
            config,
            Listed(names(config or {}, "modules_to_not_convert"), expressions, anywhere=True),
        )
        bits = config.get("bits", config.get("w_bit"))
        group = config.get("group_size", config.get("q_group_size"))
        version = str(config.get("version", "gemm")).lower()
        if (
            bits != BITS
            or version != "gemm"
            or not isinstance(group, int)
            or not (group == -1 or group > 0)
        ):
            raise ModelError(
                f"quantization_config: {bits!r:.80} bits in groups of {group!r:.80}, version "
                f"{version!r:.80}; awq has {BITS} bits, groups "
                "of -1 (a row) or more inputs, and of its versions gemm is read. Convert the "
                "checkpoint with AutoAWQ."
            )
        self._format = AwqFormat(group)
