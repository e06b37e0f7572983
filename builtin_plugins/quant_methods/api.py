"""What other distributions' quantization methods are built on.

What is here is promised as `core.api` is.
"""

from builtin_plugins.quant_methods.bitsandbytes.format import (
    USUAL_BLOCK,
    EightBitFormat,
    FourBitFormat,
)
from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes

__all__ = ["USUAL_BLOCK", "BitsAndBytes", "EightBitFormat", "FourBitFormat"]
