"""HQQ checkpoints."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    target = "builtin_plugins.quant_methods.hqq.method:Hqq"
    summary = "HQQ: 1, 2, 3, 4, 8 bits with fractional zero points, mixed by layer"
    return [Entry("hqq", target, summary, gives=frozenset({"hqq_marlin"}))]
