"""Public API of speculators, with the promises of `core.api`.

The contract, KV slots of draft trees, and recorded outputs for the method `suffix`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from builtin_plugins.speculators.contract import (
    MAX_DRAFT_TOKENS,
    DraftRow,
    SpeculativeConfig,
    Speculator,
    TokenTree,
)

if TYPE_CHECKING:
    from builtin_plugins.speculators.suffix import write_outputs
    from builtin_plugins.speculators.tree_slots import (
        PlacedTree,
        Query,
        TreeSlots,
        View,
        num_spare_blocks,
    )

__all__ = [
    "MAX_DRAFT_TOKENS",
    "DraftRow",
    "PlacedTree",
    "Query",
    "SpeculativeConfig",
    "Speculator",
    "TokenTree",
    "TreeSlots",
    "View",
    "num_spare_blocks",
    "write_outputs",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first used: plugins are loaded without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "suffix" if name == "write_outputs" else "tree_slots"
    return getattr(importlib.import_module(f"builtin_plugins.speculators.{module}"), name)
