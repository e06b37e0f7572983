"""Names and header of blocks in files and object stores."""

from __future__ import annotations

from typing import Final

from builtin_plugins.kv_connectors.contract import BlockKey


class Damaged(Exception):
    """A stored block does not match its checksum or format."""


MAGIC: Final = b"engine-kv-block\x01"
"""First bytes of a block file; the checksum and the block follow."""
CHECKSUM_BYTES: Final = 16
KEY_DIGITS: Final = 64


def block_path(key: BlockKey) -> str:
    """Return a block's relative path: a two-digit folder, and a name of group and key."""
    digits = key.key.hex()
    return f"{digits[:2]}/{key.group}-{digits}"


def parse_block_name(name: str, num_groups: int) -> BlockKey | None:
    """Return the block with this file name; None: it is no block file."""
    group, _, digits = name.partition("-")
    if not group.isdecimal() or int(group) >= num_groups or len(digits) != KEY_DIGITS:
        return None
    try:
        return BlockKey(int(group), bytes.fromhex(digits))
    except ValueError:
        return None
