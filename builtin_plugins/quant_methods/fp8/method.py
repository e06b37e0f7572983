"""Checkpoints of eight-bit floats that say so by `fp8` (of tensors, or 128 x 128 blocks) or
`fbgemm_fp8` (of rows).
"""

from __future__ import annotations

from typing import Any, Final

from builtin_plugins.quant_methods.common.floats import FloatsFormat
from builtin_plugins.quant_methods.common.left_out import AllButListed
from builtin_plugins.quant_methods.common.names import Listed, expressions
from builtin_plugins.quant_methods.common.scales import WHOLE, Shared, is_pair
from builtin_plugins.quant_methods.fp8.rounding import Fp8Rounded
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.stored.stated import names
from core.api import ModelError

BESIDE: Final = "input_scale activation_scale input_scale_ub"
"""Of activations, which are rounded as they come, if at all."""


def make_fp8(config: Any = None) -> StoredMethod:
    """Return what reads such a checkpoint, or rounds a plain one."""
    return Fp8(config) if config else Fp8Rounded()


class _Floats(AllButListed):
    """All linear layers are stored alike, but those that the config names."""

    def __init__(self, config: Any = None) -> None:
        listed = names(config or {}, "ignored_layers", "modules_to_not_convert")
        super().__init__(config, Listed(listed, expressions, anywhere=True))


class Fp8(_Floats):
    """`weight_block_size` says which weights share a scale; without it those of a tensor do."""

    name = "fp8"
    example_config: Final = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        block = config.get("weight_block_size")
        if block is not None and not is_pair(block):
            raise ModelError(
                f"quantization_config: weight_block_size is {block!r:.80}; it is two sizes, as "
                "[128, 128], or null."
            )
        shared, names = (Shared(*block), ("weight_scale_inv", "weight_scale")) if block else (
            Shared(WHOLE, WHOLE), ("weight_scale", "weight_scale_inv"),
        )  # fmt: skip
        self._format = FloatsFormat(
            shared, scale=names[0], other=names[1], optional=BESIDE, x_bits=8
        )


class FbgemmFp8(_Floats):
    """A scale for each row."""

    name = "fbgemm_fp8"
    example_config: Final = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._format = FloatsFormat(Shared(1, WHOLE), optional=BESIDE, x_bits=8)
