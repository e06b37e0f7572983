"""Which layers of a bitsandbytes checkpoint are quantized: all linear ones but those that its
config names.
"""

from __future__ import annotations

from typing import Any, Final

from builtin_plugins.quant_methods.bitsandbytes.format import EightBitFormat, FourBitFormat
from builtin_plugins.quant_methods.common.left_out import AllButListed
from builtin_plugins.quant_methods.common.names import Listed, expressions
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.stated import names
from core.api import ModelError

KINDS: Final = ("nf4", "fp4")


class BitsAndBytes(AllButListed):
    """What transformers saves of a model that was loaded in 4 or 8 bits."""

    name = "bitsandbytes"
    cure = "To quantize a plain checkpoint with it while it loads, pip install engine-bitsandbytes; or round it with int8 or int4."
    example_config: Final = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "llm_int8_skip_modules": ["lm_head"],
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(
            config, Listed(names(config or {}, "llm_int8_skip_modules"), expressions, anywhere=True)
        )
        kind = config.get("bnb_4bit_quant_type", "fp4")
        four, eight = (
            bool(config.get(f"load_in_{bits}bit") or config.get(f"_load_in_{bits}bit"))
            for bits in (4, 8)
        )
        if four == eight or (four and kind not in KINDS):
            raise ModelError(
                f"quantization_config: load_in_4bit is {four}, load_in_8bit {eight}, "
                f"bnb_4bit_quant_type {kind!r:.80}; it is one "
                f"of both, and of 4 bits the type is one of {', '.join(KINDS)}. Restore the config "
                "from where the model came."
            )
        self._format: StoredFormat = (
            FourBitFormat(kind, nested=bool(config.get("bnb_4bit_use_double_quant")))
            if four
            else EightBitFormat()
        )
        self._stated = config.get("llm_int8_skip_modules")

    def decide_head(self, prefix: str) -> StoredFormat | None:
        """Return the same for the head, which is left out where the config names nothing."""
        return None if self._stated is None else self.decide(prefix)
