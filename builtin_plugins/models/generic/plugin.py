"""The generic entry: any causal model through transformers' modules."""

from core.api import Entry, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the entry; its low priority lets entries of named architectures win."""
    return [
        Entry(
            "transformers",
            "builtin_plugins.models.generic.spec:spec",
            "any causal model, through transformers' modules",
            priority=-100,
            gives=frozenset({"any architecture"}),
        )
    ]
