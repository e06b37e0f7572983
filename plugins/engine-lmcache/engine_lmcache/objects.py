"""How a block lies in an object of LMCache: what such an object begins with, the seal, the bytes.

Knows no LMCache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from builtin_plugins.kv_connectors.api import MAGIC, SEAL_BYTES, Damaged, parts_of

if TYPE_CHECKING:
    from core.contracts.kv_connectors import Block

HEAD_BYTES: Final = len(MAGIC) + SEAL_BYTES
ALIGN_BYTES: Final = 4096
"""What LMCache's memory is given out in."""


def padded(block_bytes: int) -> int:
    """Return what the object of a block takes of it."""
    return -(-(HEAD_BYTES + block_bytes) // ALIGN_BYTES) * ALIGN_BYTES


def fill(buffer: Any, block: Block, seal: bytes) -> None:
    """Write a block and its seal into an object's memory."""
    whole = np.frombuffer(buffer, np.uint8)
    whole[:HEAD_BYTES] = np.frombuffer(MAGIC + seal, np.uint8)
    for part, piece in zip(block, parts_of(whole[HEAD_BYTES:], block), strict=True):
        np.copyto(piece, part)


def take(buffer: Any, block: Block) -> bytes:
    """Copy a block out of an object's memory, and return what stands before it."""
    whole = np.frombuffer(buffer, np.uint8)
    for part, piece in zip(block, parts_of(whole[HEAD_BYTES:], block), strict=True):
        np.copyto(part, piece)
    return whole[:HEAD_BYTES].tobytes()


def seal_in(head: bytes) -> bytes:
    """Return the seal that stands before a block. Raises `Damaged` where it is no block."""
    if not head.startswith(MAGIC):
        raise Damaged("it is no block's object")
    return head[len(MAGIC) :]
