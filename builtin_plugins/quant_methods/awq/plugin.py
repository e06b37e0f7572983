"""AWQ checkpoints."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    return [
        Entry(
            "awq",
            "builtin_plugins.quant_methods.awq.method:Awq",
            "AWQ: 4 bits with zero points",
            gives=frozenset(
                {
                    "awq_marlin",
                    "awq_triton",
                    "cpu_awq",
                    "cpu_wna16",
                    "moe_wna16",
                    "ipex",
                    "ipex_quant",
                }
            ),
        )
    ]
