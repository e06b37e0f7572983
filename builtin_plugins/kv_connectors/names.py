"""What blocks are called where others can see them, as files in a folder or objects in a bucket,
and what lies there instead.
"""

from __future__ import annotations

from typing import Final

from core.api import BlockKey


class Damaged(Exception):
    """What lies under a block's name is not what was written there."""


class Gone(Exception):
    """Nothing lies under it any more: somebody has removed it."""


DAMAGED: Final = f"{Damaged.__name__}: "
"""What errors begin with that tell of the one."""
GONE: Final = f"{Gone.__name__}: "
"""And of the other."""

MAGIC: Final = b"engine-kv-block\x01"
"""What such a file begins with; its seal and the block follow."""
SEAL_BYTES: Final = 16
KEY_DIGITS: Final = 64


def path_of(key: BlockKey) -> str:
    """Return a block's path: a folder of few, and a name that says group and key."""
    digits = key.key.hex()
    return f"{digits[:2]}/{key.group}-{digits}"


def key_of(name: str, num_groups: int) -> BlockKey | None:
    """Return which block has such a name, the last part of its path; None: it is none of ours."""
    group, _, digits = name.partition("-")
    if not group.isdecimal() or int(group) >= num_groups or len(digits) != KEY_DIGITS:
        return None
    try:
        return BlockKey(int(group), bytes.fromhex(digits))
    except ValueError:
        return None
