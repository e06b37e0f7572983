"""The half at the edge: a request is completed by its adapter, whose content is part of what its
cache depends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from builtin_plugins.features.lora.edge import FIELD, Adapters
from builtin_plugins.features.lora.settings import NAME
from core.api import Draft, InvalidRequest

_encode = msgspec.msgpack.Encoder().encode


class Admission:
    """Reads `lora_request`."""

    keywords = (FIELD,)

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters

    async def prepare(self, draft: Draft) -> Draft:
        """Return the request with its adapter.

        Raises `InvalidRequest` for one that cannot be served.
        """
        request = draft.given[FIELD]
        wanted = await self._adapters.wanted(request)
        return replace(
            draft,
            cache_domains=(*draft.cache_domains, (NAME, wanted.digest)),
            features={**draft.features, NAME: _encode(wanted)},
            shown={**draft.shown, FIELD: request},
        )

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Return why a request failed, where its adapter was to blame."""
        error = features.get(NAME)
        return {} if error is None else {"refusal": InvalidRequest(FIELD, error.decode())}
