"""AutoRound checkpoints."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    return [
        Entry(
            "auto-round",
            "builtin_plugins.quant_methods.auto_round.method:AutoRound",
            "AutoRound: 2, 3, 4, 8 bits, mixed by layer",
            gives=frozenset({"auto_round", "intel/auto-round", "inc"}),
        )
    ]
