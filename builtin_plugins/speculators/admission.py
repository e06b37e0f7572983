"""The half at the edge: what was guessed of a request is told with its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from builtin_plugins.speculators.messages import NAME, Outcome

_decode = msgspec.msgpack.Decoder(Outcome).decode


class Admission:
    """Reads nothing of requests."""

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Return what is counted of one that has ended."""
        return {"counts": _decode(features[NAME]).counts()} if NAME in features else {}
