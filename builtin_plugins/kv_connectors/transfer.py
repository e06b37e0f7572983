"""`kv_transfer_params`: what requests say of blocks that another engine has, or will want.

The half at the edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from builtin_plugins.kv_connectors.messages import NAME
from core.api import Draft, InvalidRequest, KVTransferConfig, RemoteKVConnector

FIELD: Final = "kv_transfer_params"


class Wish(msgspec.Struct, frozen=True):
    """What is read of it here; the rest is the connector's. Names as in vLLM."""

    do_remote_decode: bool = False
    """Another engine goes on: the answer is to say how it gets the blocks."""
    do_remote_prefill: bool = False
    """Another engine has computed the prompt, and this is what it answered."""


class Admission:
    """Reads `kv_transfer_params`, and shows what an engine offers another."""

    keywords = (FIELD,)
    fields = (FIELD,)

    def __init__(self, connector: RemoteKVConnector, settings: KVTransferConfig) -> None:
        self._connector = connector
        self._settings = settings

    def concerns(self, draft: Draft) -> bool:
        """Say whether it asks for anything."""
        return bool(draft.given.get(FIELD))

    async def prepare(self, draft: Draft) -> Draft:
        """Check what is said, and hand it on. Raises `InvalidRequest`."""
        params = draft.given[FIELD]
        try:
            wish = msgspec.convert(params, Wish)
        except msgspec.ValidationError as error:
            raise InvalidRequest(FIELD, f"{error}.") from error
        if wish.do_remote_decode and wish.do_remote_prefill:
            raise InvalidRequest(
                FIELD,
                "asks for do_remote_decode and do_remote_prefill; one engine does one of them.",
            )
        if wish.do_remote_decode and self._settings.kv_role == "kv_consumer":
            raise InvalidRequest(
                FIELD,
                "asks for do_remote_decode, and this engine is a kv_consumer: ask one that stores "
                "blocks.",
            )
        if wish.do_remote_prefill:
            self._connector.check(params)
        try:
            said = msgspec.msgpack.encode(params)
        except (OverflowError, RecursionError) as error:
            raise InvalidRequest(
                FIELD, "is larger than any engine's answer: pass on what one has answered."
            ) from error
        return replace(draft, features={**draft.features, NAME: said})

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Return what another engine needs."""
        offer = features.get(NAME)
        return {} if offer is None else {FIELD: msgspec.msgpack.decode(offer)}
