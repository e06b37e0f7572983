"""A rank's blocks as objects in a bucket. Puts are atomic, so objects are always complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import obstore

from builtin_plugins.kv_connectors.api import (
    CHECKSUM_BYTES,
    MAGIC,
    BlockKey,
    Damaged,
    block_path,
    parse_block_name,
    split_like,
)

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.api import Block

HEAD_BYTES = len(MAGIC) + CHECKSUM_BYTES


class ObjectBlockStore:
    """Blocks under one prefix of a bucket, named by group and key."""

    checksum: Literal["sum", "crc32"] = "crc32"

    def __init__(
        self, bucket: Any, folder: str, block_bytes: Sequence[int], survey_s: float
    ) -> None:
        self._bucket = bucket
        self._folder = folder
        self._block_bytes = block_bytes
        self.survey_s = survey_s
        self._known: set[BlockKey] = set()
        """Blocks written here or found by a survey, and not dropped since."""

    def survey(self) -> Iterable[BlockKey]:
        """Return the blocks that are not known yet, oldest first."""
        found = []
        for page in obstore.list(self._bucket, prefix=self._folder):
            for each in page:
                key = parse_block_name(each["path"].rpartition("/")[2], len(self._block_bytes))
                if key is None or key in self._known:
                    continue
                if each["size"] == HEAD_BYTES + self._block_bytes[key.group]:
                    found.append((each["last_modified"], key))
        found.sort()
        self._known.update(key for _, key in found)
        return [key for _, key in found]

    def write(self, key: BlockKey, block: Block, checksum: bytes) -> None:
        """Put an object."""
        obstore.put(self._bucket, self._path(key), b"".join([MAGIC, checksum, *block]))
        self._known.add(key)

    def read(self, key: BlockKey, block: Block) -> bytes:
        """Get an object. Raises `Damaged` if it is malformed."""
        data = memoryview(obstore.get(self._bucket, self._path(key)).bytes())
        if len(data) != HEAD_BYTES + self._block_bytes[key.group] or data[: len(MAGIC)] != MAGIC:
            raise Damaged("it is not a block object any more")
        body = np.frombuffer(data[HEAD_BYTES:], np.uint8)
        for part, piece in zip(block, split_like(body, block), strict=True):
            np.copyto(part, piece)
        return bytes(data[len(MAGIC) : HEAD_BYTES])

    def drop(self, key: BlockKey) -> None:
        """Delete an object, if it exists."""
        self._known.discard(key)
        try:
            obstore.delete(self._bucket, self._path(key))
        except FileNotFoundError:  # some stores raise it
            return

    def _path(self, key: BlockKey) -> str:
        return f"{self._folder}/{block_path(key)}"

    def close(self) -> None:
        """Do nothing: no connection stays open."""
