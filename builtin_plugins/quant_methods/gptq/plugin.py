"""GPTQ checkpoints."""

from core.api import Entry, hookimpl

OF_KERNELS = ("gptq_marlin", "gptq_bitblas", "cpu_gptq")
SHARED = ("cpu_wna16", "moe_wna16", "ipex", "ipex_quant")
"""Names that mean AWQ as well."""
REFUSED = ("marlin", "gptq_marlin_24", "bitblas")
"""Names of weights in other orders, of which the method says why it does not read them; it reads
what is GPTQ in truth.
"""


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method."""
    return [
        Entry(
            "gptq",
            "builtin_plugins.quant_methods.gptq.method:Gptq",
            "GPTQ: 2, 3, 4, 8 bits, with activation order and rules by layer",
            gives=frozenset((*OF_KERNELS, *SHARED, *REFUSED)),
        )
    ]
