"""Public API for quantization methods of other distributions; as stable as `core.api`."""

from builtin_plugins.quant_methods.bitsandbytes.method import (
    DEFAULT_BLOCK_SIZE,
    BitsAndBytes,
    EightBitFormat,
    FourBitFormat,
)
from builtin_plugins.quant_methods.stored.backends import (
    DequantizedBackend,
    DequantizedFallback,
    select_backend,
)
from builtin_plugins.quant_methods.stored.experts import BackendExperts
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layers import StoredLinear
from builtin_plugins.quant_methods.stored.layouts import (
    GroupedInts,
    Layout,
    LayoutSpec,
    ScaledFloats,
)
from builtin_plugins.quant_methods.stored.method import StoredMethod, mentions
from builtin_plugins.quant_methods.stored.packing import e8m0_to_float, unpack_fp4

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "BackendExperts",
    "BitsAndBytes",
    "DequantizedBackend",
    "DequantizedFallback",
    "EightBitFormat",
    "FourBitFormat",
    "GroupedInts",
    "Layout",
    "LayoutSpec",
    "ScaledFloats",
    "StoredFormat",
    "StoredLinear",
    "StoredMethod",
    "e8m0_to_float",
    "mentions",
    "select_backend",
    "unpack_fp4",
]
