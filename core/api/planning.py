"""What a start decides about memory, for commands that plan it."""

from core.engine.memory import context_length, fit_memory
from core.engine.resolve import Resolved, resolve
from core.kv.layout import NULL_BLOCKS
from core.kv.windows import peak_blocks

__all__ = [
    "NULL_BLOCKS",
    "Resolved",
    "context_length",
    "fit_memory",
    "peak_blocks",
    "resolve",
]
