"""Admission half: reports a request's draft statistics with its final output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from builtin_plugins.features.speculation.messages import NAME, DraftStats

_decode = msgspec.msgpack.Decoder(DraftStats).decode


class Admission:
    """Reads no field of requests."""

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Return the counts of a finished request."""
        return {"counts": _decode(features[NAME]).counts()} if NAME in features else {}
