"""The contract of input processors, with the promises of `core.api`."""

from builtin_plugins.input_processors.contract import (
    EMBEDDINGS,
    ITEM,
    InputProcessor,
    ProcessedItem,
)
from builtin_plugins.input_processors.expansion import expand_ids, expand_text

__all__ = ["EMBEDDINGS", "ITEM", "InputProcessor", "ProcessedItem", "expand_ids", "expand_text"]
