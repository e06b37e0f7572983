"""Admission half: reports a request's costs with its final output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from builtin_plugins.features.request_costs.messages import NAME, Cost

_decode = msgspec.msgpack.Decoder(Cost).decode


class Admission:
    """Reads no field of requests."""

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Return the counts of a finished sequence."""
        return {"counts": _decode(features[NAME]).counts()} if NAME in features else {}
