"""Layout of a block in an LMCache object: magic, checksum, bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from builtin_plugins.kv_connectors.api import CHECKSUM_BYTES, MAGIC, Damaged, split_like

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.api import Block

HEAD_BYTES: Final = len(MAGIC) + CHECKSUM_BYTES
ALIGN_BYTES: Final = 4096
"""Allocation unit of LMCache's memory."""


def padded(block_bytes: int) -> int:
    """Return the allocated bytes of a block's object."""
    return -(-(HEAD_BYTES + block_bytes) // ALIGN_BYTES) * ALIGN_BYTES


def write_block(buffer: Any, block: Block, checksum: bytes) -> None:
    """Write a block and its checksum into an object's memory."""
    whole = np.frombuffer(buffer, np.uint8)
    whole[:HEAD_BYTES] = np.frombuffer(MAGIC + checksum, np.uint8)
    for part, piece in zip(block, split_like(whole[HEAD_BYTES:], block), strict=True):
        np.copyto(piece, part)


def read_block(buffer: Any, block: Block) -> bytes:
    """Copy a block out of an object's memory. Returns the header."""
    whole = np.frombuffer(buffer, np.uint8)
    for part, piece in zip(block, split_like(whole[HEAD_BYTES:], block), strict=True):
        np.copyto(part, piece)
    return whole[:HEAD_BYTES].tobytes()


def checksum_in(header: bytes) -> bytes:
    """Return the checksum in a header. Raises `Damaged` for a foreign object."""
    if not header.startswith(MAGIC):
        raise Damaged("it is not a block object")
    return header[len(MAGIC) :]
