"""GPTQ checkpoints."""

from core.api import Entry, hookimpl

KERNEL_NAMES = ("gptq_marlin", "gptq_bitblas", "cpu_gptq")
SHARED_NAMES = ("cpu_wna16", "moe_wna16", "ipex", "ipex_quant")
"""Names that mean AWQ as well."""
REFUSED_NAMES = ("marlin", "gptq_marlin_24", "bitblas")
"""Names of kernel-specific layouts.

The method reads those that are GPTQ's own layout and rejects the others with a reason.
"""


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    return [
        Entry(
            "gptq",
            "builtin_plugins.quant_methods.gptq.method:Gptq",
            "GPTQ: 2, 3, 4, 8 bits, with activation order and rules by layer",
            gives=frozenset((*KERNEL_NAMES, *SHARED_NAMES, *REFUSED_NAMES)),
        )
    ]
