"""Admission half: reads `kv_transfer_params`, and returns an engine's offer with the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from builtin_plugins.features.kv_tiers.messages import NAME
from builtin_plugins.kv_connectors.api import KVTransferConfig, RemoteKVConnector
from core.api import InvalidRequest
from core.api.features import PendingRequest

FIELD: Final = "kv_transfer_params"


class TransferParams(msgspec.Struct, frozen=True):
    """The fields that every connector shares; named as in vLLM."""

    do_remote_decode: bool = False
    """Return an offer: another engine will decode."""
    do_remote_prefill: bool = False
    """Load the offered blocks: another engine has computed the prompt."""


class Admission:
    """Checks `kv_transfer_params` of requests, and adds offers to finished ones."""

    keywords = (FIELD,)
    fields = (FIELD,)

    def __init__(self, connector: RemoteKVConnector, settings: KVTransferConfig) -> None:
        self._connector = connector
        self._settings = settings

    def concerns(self, pending: PendingRequest) -> bool:
        """Return whether a request sets the field."""
        return bool(pending.plugin_fields.get(FIELD))

    async def prepare(self, pending: PendingRequest) -> PendingRequest:
        """Check the parameters and pass them to the scheduler half. Raises `InvalidRequest`."""
        params = pending.plugin_fields[FIELD]
        try:
            parsed = msgspec.convert(params, TransferParams)
        except msgspec.ValidationError as error:
            raise InvalidRequest(FIELD, f"{error}.") from error
        if parsed.do_remote_decode and parsed.do_remote_prefill:
            raise InvalidRequest(
                FIELD,
                "got do_remote_decode and do_remote_prefill; expected only one of them.",
            )
        if parsed.do_remote_decode and self._settings.kv_role == "kv_consumer":
            raise InvalidRequest(
                FIELD,
                "got do_remote_decode; this engine is a kv_consumer. Send it to an engine that "
                "stores blocks.",
            )
        if parsed.do_remote_prefill:
            self._connector.check(params)
        try:
            encoded = msgspec.msgpack.encode(params)
        except (OverflowError, RecursionError) as error:
            raise InvalidRequest(
                FIELD, "is larger than any engine's offer. Pass an offer on unchanged."
            ) from error
        return replace(pending, features={**pending.features, NAME: encoded})

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Return the offer for another engine, if there is one."""
        offer = features.get(NAME)
        return {} if offer is None else {FIELD: msgspec.msgpack.decode(offer)}
