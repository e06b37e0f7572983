"""The entry for every architecture that has none of its own."""

from core.api import Entry, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the entry; it stands for any architecture, so those with a name of their own come
    first.
    """
    return [
        Entry(
            "transformers",
            "builtin_plugins.models.generic.spec:spec",
            "any causal model through transformers' own modules",
            priority=-100,
            gives=frozenset({"any architecture"}),
        )
    ]
