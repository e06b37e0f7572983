"""Options of all methods that read stored formats."""

from typing import Literal

from core.api import Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    """Return the option of rounded activations."""
    text = (
        "Round activations as a quantized checkpoint specifies. auto: where this makes products "
        "faster; on: everywhere; off: nowhere, which is more exact."
    )
    modes = Literal["auto", "on", "off"]
    return [Option("activation_quantization", modes, "auto", text, read_by="quant_methods")]
