"""Admission half: resolves a request's adapter, which is part of its prefix cache key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from builtin_plugins.features.lora.registry import FIELD, AdapterRegistry
from builtin_plugins.features.lora.settings import NAME
from core.api import InvalidRequest
from core.api.features import PendingRequest

_encode = msgspec.msgpack.Encoder().encode


class Admission:
    """Reads `lora_request`."""

    keywords = (FIELD,)

    def __init__(self, adapters: AdapterRegistry) -> None:
        self._adapters = adapters

    async def prepare(self, draft: PendingRequest) -> PendingRequest:
        """Return the request with its adapter.

        Raises `InvalidRequest` if the adapter cannot be served.
        """
        request = draft.plugin_fields[FIELD]
        ref = await self._adapters.ref(request)
        return replace(
            draft,
            cache_domains=(*draft.cache_domains, (NAME, ref.digest)),
            features={**draft.features, NAME: _encode(ref)},
            extra_fields={**draft.extra_fields, FIELD: request},
        )

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Return why a request failed, if its adapter was the cause."""
        error = features.get(NAME)
        return {} if error is None else {"refusal": InvalidRequest(FIELD, error.decode())}
