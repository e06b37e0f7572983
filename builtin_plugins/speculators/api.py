"""Public API of speculators, with the promises of `core.api`.

KV slots of draft trees, and recorded outputs for the method `suffix`.
"""

from builtin_plugins.speculators.suffix import write_outputs
from builtin_plugins.speculators.tree_slots import (
    PlacedTree,
    Query,
    TreeSlots,
    View,
    num_spare_blocks,
)

__all__ = ["PlacedTree", "Query", "TreeSlots", "View", "num_spare_blocks", "write_outputs"]
