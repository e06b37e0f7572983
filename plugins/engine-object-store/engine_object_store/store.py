"""A rank's blocks as objects: their seal, then their bytes. An object is there when all of it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import obstore

from builtin_plugins.kv_connectors.api import MAGIC, SEAL_BYTES, Damaged, key_of, parts_of, path_of
from core.api import BlockKey

if TYPE_CHECKING:
    from core.contracts.kv_connectors import Block

HEAD_BYTES = len(MAGIC) + SEAL_BYTES


class Objects:
    """Blocks under one prefix of a bucket, named by group and key."""

    seal: Literal["sum", "crc32"] = "crc32"

    def __init__(
        self, bucket: Any, folder: str, block_bytes: Sequence[int], survey_s: float
    ) -> None:
        self._bucket = bucket
        self._folder = folder
        self._block_bytes = block_bytes
        self.survey_s = survey_s
        self._known: set[BlockKey] = set()
        """Blocks that were written here or named by a survey, and not dropped since."""

    def survey(self) -> Iterable[BlockKey]:
        """Return the blocks there are, but for those that are known, the oldest first."""
        found = []
        for page in obstore.list(self._bucket, prefix=self._folder):
            for each in page:
                key = key_of(each["path"].rpartition("/")[2], len(self._block_bytes))
                if key is None or key in self._known:
                    continue
                if each["size"] == HEAD_BYTES + self._block_bytes[key.group]:
                    found.append((each["last_modified"], key))
        found.sort()
        self._known.update(key for _, key in found)
        return [key for _, key in found]

    def write(self, key: BlockKey, block: Block, seal: bytes) -> None:
        """Put an object, in one piece."""
        obstore.put(self._bucket, self._path(key), b"".join([MAGIC, seal, *block]))
        self._known.add(key)

    def read(self, key: BlockKey, block: Block) -> bytes:
        """Get it. Raises `Damaged` where it is another than was put there."""
        data = memoryview(obstore.get(self._bucket, self._path(key)).bytes())
        if len(data) != HEAD_BYTES + self._block_bytes[key.group] or data[: len(MAGIC)] != MAGIC:
            raise Damaged("it is no block's object any more")
        body = np.frombuffer(data[HEAD_BYTES:], np.uint8)
        for part, piece in zip(block, parts_of(body, block), strict=True):
            np.copyto(part, piece)
        return bytes(data[len(MAGIC) : HEAD_BYTES])

    def drop(self, key: BlockKey) -> None:
        """Delete it, if it is there."""
        self._known.discard(key)
        try:
            obstore.delete(self._bucket, self._path(key))
        except FileNotFoundError:  # of some kinds of stores
            return

    def _path(self, key: BlockKey) -> str:
        return f"{self._folder}/{path_of(key)}"

    def close(self) -> None:
        """Nothing is open."""
