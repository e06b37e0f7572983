"""Which layers of an FP-Quant checkpoint are stored in its format: all linear ones but those that
its config names.
"""

from __future__ import annotations

from typing import Any, Final

from builtin_plugins.quant_methods.common.left_out import AllButListed
from builtin_plugins.quant_methods.common.names import Listed, expressions
from builtin_plugins.quant_methods.fp_quant.format import GROUPS, RotatedFormat
from builtin_plugins.quant_methods.stored.stated import names
from core.api import ModelError

ROTATED: Final = 32
"""Neighbouring inputs that are rotated together, where the config does not say."""
NOT_READ: Final = ("pseudoquantization", "store_master_weights")
"""Checkpoints of plain numbers, for training and for devices without kernels."""


class FpQuant(AllButListed):
    """What FP-Quant and transformers save."""

    name = "fp_quant"
    example_config: Final = {
        "quant_method": "fp_quant",
        "forward_dtype": "mxfp4",
        "hadamard_group_size": ROTATED,
        "modules_to_not_convert": ["lm_head"],
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(
            config,
            Listed(names(config or {}, "modules_to_not_convert"), expressions, anywhere=True),
        )
        kind = str(config.get("forward_dtype", "nvfp4"))
        size = config.get("hadamard_group_size", ROTATED)
        if kind not in GROUPS or not isinstance(size, int) or size < 1:
            raise ModelError(
                f"quantization_config: forward_dtype is {kind!r:.80}, hadamard_group_size "
                f"{size!r:.80}; read are "
                f"{', '.join(GROUPS)} with rotations of 1 or more inputs. Restore the config from "
                "where the model came."
            )
        stated = [name for name in NOT_READ if config.get(name)]
        if stated:
            raise ModelError(
                f"quantization_config: {' and '.join(stated)} is set, so weights are not stored in "
                "four bits; that is not "
                "read. Save the model without it."
            )
        self._format = RotatedFormat(kind, size)
