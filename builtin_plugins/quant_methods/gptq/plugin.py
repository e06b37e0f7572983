"""GPTQ checkpoints."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method."""
    return [
        Entry(
            "gptq",
            "builtin_plugins.quant_methods.gptq.method:Gptq",
            "GPTQ: 2, 3, 4, 8 bits, with activation order and rules by layer",
            gives=frozenset({"gptq_marlin", "gptq_bitblas", "cpu_gptq", "cpu_wna16", "moe_wna16", "ipex"}),
        )
    ]
