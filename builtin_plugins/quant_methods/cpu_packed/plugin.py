"""Packs plain weights on load: the CPU default for all weights that are not quantized."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    return [
        Entry(
            "packed",
            "builtin_plugins.quant_methods.cpu_packed.method:make_method",
            "C++: plain weights packed for the CPU kernels",
            priority=10,
            when={"device": "cpu"},
            gives=frozenset({"plain weights"}),
        )
    ]
