"""Identity of an engine's weights: a restart with other weights must not continue an answer."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path
from typing import Any, Final

from core.api.execution import LoadedParts
from core.api.models import ModelSource

NAME: Final = "weights"
CALL: Final = f"{NAME}.identity"
"""Call that returns the identity of each rank's weights."""
UPDATED: Final = "updated "
"""Start of the identity of weights that were updated in memory: no restart loads them again."""


OTHER_WEIGHTS: Final = (
    "the engine died and came back with other weights than this answer was begun with; send the "
    "request again."
)
"""Error of an answer with tokens, at a restart with other weights."""


class KnownWeights:
    """Identity of the weights of the last engine that was ready."""

    def __init__(self) -> None:
        self._identity = ""

    @property
    def is_updated(self) -> bool:
        """Return whether no other engine has these weights."""
        return UPDATED in self._identity

    def note(self, identity: str) -> bool:
        """Store the current identity; return whether it replaces another one."""
        previous = self._identity
        self._identity = identity or previous
        return bool(previous) and self._identity != previous


class WeightsIdentity:
    """Worker extension that identifies the weights by their files, or as updated in memory."""

    name = NAME

    def loaded(self, parts: LoadedParts) -> list[Any]:
        """Identify the weights that were loaded."""
        self._source = parts.source
        self._model = parts.model
        self._version = self._weights_version
        self._identity = files_identity(parts.source)
        return []

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Return the identity of the weights."""
        if verb != "identity":
            return None
        version = self._weights_version
        if version != self._version:
            self._version = version
            owner = getattr(self._model, "weights", self._model)
            is_reloaded = version == getattr(owner, "reloaded_version", None)
            self._identity = (
                files_identity(self._source) if is_reloaded else UPDATED + uuid.uuid4().hex
            )
        return self._identity.encode()

    @property
    def _weights_version(self) -> int:
        return int(getattr(self._model, "weights_version", 0))


def files_identity(source: ModelSource) -> str:
    """Return a hash of names, sizes and times of a model's files; that of the source without any.

    It costs no reading, and a file that is written again counts as another one.
    """
    digest = hashlib.sha256()
    path = Path(source.name).expanduser() if os.path.isfile(source.name) else source.path
    if path is None:
        return source.identity
    for file in [Path(path), *sorted(Path(path).glob("*"))]:
        if os.path.isfile(file):
            found = file.stat()
            digest.update(f"\0{file.name}\0{found.st_size}\0{found.st_mtime_ns}".encode())
    return digest.hexdigest()
