"""Packs plain weights as they load: the default on CPUs for every weight that a quantization method
leaves as it is.
"""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method."""
    return [
        Entry(
            "packed",
            "builtin_plugins.quant_methods.packed.method:make_method",
            "C++: weights as the checkpoint stores them, in the kernels' order",
            priority=10,
            when={"device": "cpu"},
            gives=frozenset({"plain weights"}),
        )
    ]
